# SPDX-License-Identifier: Apache-2.0
"""Megatron's GPTModel with FlashMaskCoreAttention beside its own attention, packed, and over two ranks."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="Megatron runs on torch")
pytest.importorskip("megatron.core", reason="these tests run Megatron's own models: scripts/test-trainers megatron")

import megatron_ranks  # noqa: E402
import torch.distributed as dist  # noqa: E402
from megatron.core import parallel_state  # noqa: E402
from megatron.core.transformer.dot_product_attention import DotProductAttention  # noqa: E402
from megatron.core.transformer.enums import AttnMaskType  # noqa: E402
from ranks import torchrun  # noqa: E402

from flashmask.integrations.megatron import FlashMaskCoreAttention  # noqa: E402


@pytest.fixture(autouse=True)
def one_rank(monkeypatch):
    """And Megatron's own attention, which puts its buffers where torch.cuda says, on the CPU."""
    monkeypatch.setattr(torch.cuda, "current_device", lambda: "cpu")
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    parallel_state.initialize_model_parallel()
    yield
    parallel_state.destroy_model_parallel()
    dist.destroy_process_group()


def by_megatron():
    """The model with Megatron's own attention, whose dropout of 0 would otherwise ask for a generator of CUDA."""
    model = megatron_ranks.built(1, core=DotProductAttention)
    for layer in model.decoder.layers:
        core = layer.self_attention.core_attention
        core.config = SimpleNamespace(**{**vars(core.config), "sequence_parallel": True})
    return model


def causal_mask(tokens):
    """As Megatron's own attention takes it: True is masked."""
    return torch.ones(1, 1, tokens, tokens, dtype=torch.bool).triu(1)


def gradients(model, logits, weights):
    model.zero_grad()
    (logits * weights).sum().backward()
    return [each.grad for each in model.parameters() if each.grad is not None]


def test_without_packing_it_is_megatrons_own_attention():
    ours, theirs = megatron_ranks.built(1), by_megatron()
    draw = torch.Generator().manual_seed(2)
    tokens = torch.randint(0, megatron_ranks.VOCABULARY, (2, 40), generator=draw)
    positions = torch.arange(40).expand(2, -1)
    found, expected = (model(tokens, positions, causal_mask(40)) for model in (ours, theirs))
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-4)
    weights = torch.randn(found.shape, generator=draw)
    for one, other in zip(gradients(ours, found, weights), gradients(theirs, expected, weights), strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-3)


def test_packed_documents_are_each_document_alone_by_megatrons_own_attention():
    ours, theirs = megatron_ranks.built(1), by_megatron()
    tokens, _, positions, real = megatron_ranks.packed()
    found = ours(tokens, positions, None, packed_seq_params=megatron_ranks.parameters_of_step())[real]
    parts = [
        theirs(part[:, :length], torch.arange(length)[None], causal_mask(length))[0]
        for part, length in zip(tokens.split(megatron_ranks.PADDED, 1), megatron_ranks.LENGTHS, strict=True)
    ]
    expected = torch.cat(parts)
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-4)
    weights = torch.randn(found.shape, generator=torch.Generator().manual_seed(2))
    for one, other in zip(gradients(ours, found, weights), gradients(theirs, expected, weights), strict=True):
        torch.testing.assert_close(one, other, atol=2e-4, rtol=1e-3)


@pytest.mark.parametrize("padded", [False, True])
def test_a_window_of_a_layer_and_bidirectional_documents_are_those_of_the_formula(padded):
    config = SimpleNamespace(**vars(megatron_ranks.built(1).config))
    config.window_size = (5, 3)
    module = FlashMaskCoreAttention(config, 1, AttnMaskType.no_mask, "self")
    draw = torch.Generator().manual_seed(3)
    lengths, taken = ([7, 12], [8, 12]) if padded else ([8, 12], [8, 12])
    q, k, v = (torch.randn(20, heads, 16, generator=draw) for heads in (4, 2, 2))
    given = SimpleNamespace(qkv_format="thd", cu_seqlens_q=megatron_ranks.ends(lengths), cp_group=None)
    given.cu_seqlens_q_padded = megatron_ranks.ends(taken) if padded else None
    found = module(q, k, v, None, packed_seq_params=given)
    token, document = torch.arange(20), torch.tensor([0] * 8 + [1] * 12)
    near = (token[:, None] - token <= 5) & (token - token[:, None] <= 3)
    seen = near & (document[:, None] == document) & ~((token == 7) & padded)
    k, v = (each.repeat_interleave(2, 1) for each in (k, v))
    scores = (torch.einsum("ihd,jhd->hij", q, k) / 4).masked_fill(~seen, -torch.inf)
    expected = torch.einsum("hij,jhd->ihd", scores.softmax(-1), v)
    rows = torch.ones(20, dtype=torch.bool)
    rows[7] = not padded
    torch.testing.assert_close(found[rows], expected[rows], atol=2e-6, rtol=1e-5)


def test_two_ranks_of_context_parallelism_have_the_losses_of_one(tmp_path):
    """20 steps of packed documents, held as Megatron spreads them: two chunks of each document on each rank."""
    program = Path(__file__).with_name("megatron_ranks.py")
    for ranks in (1, 2):
        # One rank by torchrun too: Megatron's groups want its environment.
        done = torchrun(program, tmp_path, ranks=ranks, alone=True)
        assert done.returncode == 0, done.stderr[-3000:]
    one, two = (json.loads((tmp_path / f"{ranks}.json").read_text()) for ranks in (1, 2))
    assert len(two) == 20 and two[-1] < two[0] / 2
    assert two == pytest.approx(one, rel=2e-5)


def test_what_it_would_leave_out_is_refused():
    model = megatron_ranks.built(1)
    module = model.decoder.layers[0].self_attention.core_attention
    q = torch.randn(8, 1, 4, 16)
    with pytest.raises(ValueError, match=r"attn_mask_type is AttnMaskType\.arbitrary"):
        module(q, q, q, None, attn_mask_type=AttnMaskType.arbitrary)
    with pytest.raises(ValueError, match="attention_bias given"):
        module(q, q, q, None, attention_bias=torch.zeros(1))
    with pytest.raises(ValueError, match="qkv_format is 'bshd'; expected 'thd'"):
        module(q[:, 0], q[:, 0], q[:, 0], None, packed_seq_params=SimpleNamespace(qkv_format="bshd"))
    config = SimpleNamespace(**vars(model.config))
    config.softmax_type = "learnable"
    with pytest.raises(NotImplementedError, match="softmax_type is 'learnable'"):
        FlashMaskCoreAttention(config, 1, AttnMaskType.causal, "self")
