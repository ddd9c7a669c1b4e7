# SPDX-License-Identifier: Apache-2.0
"""Inkling's bias of scores, a table by distance for each query: logits and gradients of eager attention, without a
tensor of tokens × tokens; test_transformers_hybrids.py has its convolutions.
"""

import copy
from unittest.mock import patch

import pytest

torch = pytest.importorskip("torch", reason="Transformers runs on torch")
transformers = pytest.importorskip("transformers", reason="tests its integration")

from cuda_device import needs_gpu  # noqa: E402
from docs_scripts import docs_script  # noqa: E402

import flashmask.transformers  # noqa: E402
from flashmask._torch import operators  # noqa: E402
from flashmask.transformers import _attention  # noqa: E402

families = docs_script("transformers_families")

if transformers.__version__ != families.read()[0]:
    pytest.skip(f"the table is about Transformers {families.read()[0]}", allow_module_level=True)
flashmask.transformers.register()
flashmask.transformers.register("flashmask-every-tile", visit="all")

FAMILIES = ("inkling_text", "inkling2_text", "inkling2_loop_text")
EXTENT = 16  # of full layers; windows have 5
by_family = pytest.mark.parametrize("family", FAMILIES)
pytestmark = pytest.mark.usefixtures("one_thread")


def runs(family, implementation, **changes):
    with patch.dict(families._OWN, {family: {**families._OWN.get(family, {}), **changes}}):
        return families.Runs(family, implementation)


class Given:
    """What attention was called with beside its mask."""

    def __init__(self):
        self.biases, self.tables = [], []

    def __enter__(self):
        original = operators.forward

        def forward(q, k, v, call):
            kept = {"bias": self.biases, "distance_bias": self.tables}.get(call.bias_kind, [])
            kept.append(call.bias)
            return original(q, k, v, call)

        modules = "flashmask._torch.attention", "flashmask.transformers._attention"
        self._patches = [patch(f"{name}.forward", forward) for name in modules]
        for each in self._patches:
            each.start()
        return self

    def __exit__(self, *error):
        for each in self._patches:
            each.stop()


@by_family
@pytest.mark.parametrize("name", ["flashmask", "flashmask-every-tile"])
def test_packed_documents_are_what_eager_makes_of_each_alone(family, name):
    """Scaled by the logarithm of the position from the third on, which the second Inkling counts in each document."""
    changes = {} if family == "inkling_text" else {"log_scaling_n_floor": 3}
    ours, eager = runs(family, name, **changes), runs(family, "eager", **changes)
    with Given() as given:
        found = ours.packed()
    assert families.close(found, eager.alone(), 4 * families.TOLERANCE)
    assert not given.biases and {tuple(each.shape) for each in given.tables} == {(1, 4, 24, EXTENT), (1, 4, 24, 5)}


@by_family
def test_whole_and_padded_sequences_are_eagers(family):
    ours, eager = (runs(family, each, log_scaling_n_floor=3) for each in ("flashmask", "eager"))
    with Given() as given:
        assert families.close(ours.whole(), eager.whole())
        assert families.close(ours.padded(), eager.padded())
        assert families.close(ours.padded("right"), eager.padded("right"))
    assert len(given.tables) >= 3 * ours.model.config.num_hidden_layers and not given.biases


@pytest.mark.parametrize("family", FAMILIES[1:])
@pytest.mark.parametrize(("implementation", "stride"), [("flashmask", 0), ("eager", 14)])
def test_no_distance_of_tokens_and_tokens_takes_memory(family, implementation, stride):
    made, strides = runs(family, implementation), set()

    def look(module, arguments, options):
        strides.add(options["relative_distance"].stride())

    for layer in made.model.model.layers:
        layer.self_attn.register_forward_pre_hook(look, with_kwargs=True)
    made.padded()
    assert {first for first, _ in strides} == {stride}


@by_family
def test_the_bias_matters_here(family):
    ours, without = (runs(family, "flashmask") for _ in range(2))
    for name, parameter in without.model.named_parameters():
        if "rel_logits_proj.proj" in name or "relative_position_bias.proj" in name:
            parameter.data.zero_()
    assert not families.close(ours.packed(), without.packed(), 100 * families.TOLERANCE)


@by_family
def test_checkpoints_compute_the_table_again(family):
    ours, again = (runs(family, "flashmask") for _ in range(2))
    again.model.gradient_checkpointing_enable({"use_reentrant": False})
    again.model.train()
    with Given() as given:
        assert families.close(again.packed(), ours.packed())
    assert given.tables and not given.biases


@by_family
def test_generates_what_eager_attention_generates_behind_its_window(family):
    """With a cache queries have other keys: the table is spread over these."""
    ids = torch.randint(3, 60, (2, 9), generator=torch.Generator().manual_seed(3))
    tokens = [
        runs(family, each).model.generate(ids, max_new_tokens=12, min_new_tokens=12, do_sample=False)
        for each in ("eager", "flashmask")
    ]
    assert torch.equal(*tokens)


@by_family
def test_prefill_in_pieces_is_what_a_whole_prompt_is(family):
    model, ids = (
        runs(family, "flashmask").model,
        torch.randint(3, 60, (1, 20), generator=torch.Generator().manual_seed(4)),
    )
    with torch.no_grad():
        whole = model(input_ids=ids, use_cache=False).logits
        first = model(input_ids=ids[:, :12], use_cache=True)
        second = model(input_ids=ids[:, 12:], use_cache=True, cache=first.cache)
    torch.testing.assert_close(torch.cat([first.logits, second.logits], 1), whole, atol=1e-4, rtol=1e-3)


@by_family
def test_a_model_that_changes_its_attention_takes_the_bias_of_each(family):
    ours, eager = runs(family, "flashmask"), runs(family, "eager")
    ours.model.set_attn_implementation("eager")
    assert all(map(torch.equal, ours.whole(), eager.whole()))
    eager.model.set_attn_implementation("flashmask")
    with Given() as given:
        eager.whole()
        copy.deepcopy(eager.model)(input_ids=eager.ids)
    assert given.tables and not given.biases


class Wrapper(torch.nn.Module):
    """As FSDP and compilers put one around a module."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, *arguments):
        return self.module(*arguments)


@by_family
def test_wrapped_modules_hand_over_the_table(family):
    ours, eager = runs(family, "flashmask"), runs(family, "eager")
    for layer in ours.model.model.layers:
        for name in ("rel_logits_proj", "relative_position_bias"):
            if hasattr(layer.self_attn, name):
                setattr(layer.self_attn, name, Wrapper(getattr(layer.self_attn, name)))
    with Given() as given:
        assert families.close(ours.whole()[:1], eager.whole()[:1])
    assert given.tables and not given.biases


@by_family
def test_trains_with_dropout_under_the_table(family):
    made = runs(family, "flashmask", attention_dropout=0.2)
    made.model.train()
    found = []
    with Given() as given:
        for seed in (3, 3, 4):
            torch.manual_seed(seed)
            found.append(made.whole()[0])
    assert torch.equal(found[0], found[1]) and not torch.equal(found[1], found[2])
    assert given.tables and not given.biases
    nearly_none = runs(family, "flashmask", attention_dropout=1e-9)
    nearly_none.model.train()
    assert families.close(nearly_none.whole(), runs(family, "eager").whole())


@pytest.mark.parametrize("queries", [1, 3])
def test_a_token_attends_to_its_own_layers_as_under_eager(queries):
    """Its head dim is the hidden size, beyond every kernel's, and it stays in float32 on a GPU too."""
    from transformers.models.inkling2.modeling_inkling2 import Inkling2BlockAttentionResidual

    config = families.configuration("inkling2_text")
    config.hidden_size = 600
    module = Inkling2BlockAttentionResidual(config, num_queries=queries)
    torch.nn.init.normal_(module.query)
    blocks, partial = torch.randn(2, 7, 3, 600), torch.randn(2, 7, 600, requires_grad=True)
    found = []
    for name in ("eager", "flashmask"):
        config._attn_implementation = name
        with patch.object(_attention, "in_kernels_dtype", side_effect=AssertionError("chose a dtype for kernels")):
            out = torch.stack(module(blocks, partial))
        found.append((out.detach(), *torch.autograd.grad(out.sin().sum(), (partial, module.query))))
    assert found[0][0].dtype is torch.float32
    for ours, eager in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(ours, eager, atol=2e-6, rtol=1e-5)


@needs_gpu
@by_family
def test_packed_documents_on_a_gpu_are_what_eager_makes_of_each_alone(family):
    """In bfloat16: at most twice as far from eager attention in float32 as eager attention in bfloat16."""
    found = []
    for implementation, dtype in (("eager", torch.float32), ("eager", torch.bfloat16), ("flashmask", torch.bfloat16)):
        made = runs(family, implementation, num_experts_per_tok=4)  # all, so that rounding chooses no others
        made.model.cuda()
        for name, parameter in made.model.named_parameters():
            if not any(each in name for each in made.model._keep_in_fp32_modules_strict):
                parameter.data = parameter.data.to(dtype)
        made.ids, made.positions = made.ids.cuda(), made.positions.cuda()
        made.model.zero_grad()
        logits = made._logits(made.ids, position_ids=made.positions) if implementation == "flashmask" else torch.cat(
            [made._logits(part) for part in made.ids.split(families.LENGTHS, 1)], 1
        )  # fmt: skip
        (logits.float() * torch.randn(logits.shape, generator=torch.Generator().manual_seed(5)).cuda()).sum().backward()
        of_bias = [p.grad for name, p in made.model.named_parameters() if "proj.proj" in name or "bias.proj" in name]
        assert of_bias
        found.append([each.double() for each in (logits.detach(), *of_bias)])
    for exact, naive, ours in zip(*found, strict=True):
        assert (ours - exact).norm() <= 2 * (naive - exact).norm() + 1e-3 * exact.norm()
