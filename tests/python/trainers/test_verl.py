# SPDX-License-Identifier: Apache-2.0
"""verl's forward over batches of shared prompts, with FlashMask: the log-probabilities of repeated prompts."""

import pytest

torch = pytest.importorskip("torch", reason="verl runs on torch")
pytest.importorskip("transformers", reason="verl's models are those of Transformers")
pytest.importorskip("prefix_grouper", reason="verl packs with it: scripts/test-trainers verl")
shared_prompts = pytest.importorskip(
    "verl.trainer.ppo.prefix_grouper_utils", reason="its forward is what is tested: scripts/test-trainers verl"
)

import verl_ranks  # noqa: E402
from prefix_grouper import PrefixGrouper  # noqa: E402
from ranks import torchrun  # noqa: E402
from verl.utils.torch_functional import entropy_from_logits, logprobs_from_logits  # noqa: E402
from verl_ranks import PAD, PROMPTS, WORDS, loss, micro_batch, model, packed  # noqa: E402

from flashmask.integrations.verl import NAME, prefix_grouper_attention  # noqa: E402


def repeated(of, temperature=0.7):
    """What the packed tree gives, with each response behind a prompt of its own, by eager attention."""
    batch = micro_batch()
    tokens = torch.cat([batch["prompts"], batch["responses"]], 1)
    held = torch.cat([batch["prompts"].ne(PAD).long(), batch["response_mask"]], 1)
    positions = (held.cumsum(1) - 1).clamp(min=0)
    logits = of(input_ids=tokens, attention_mask=held, position_ids=positions, use_cache=False).logits
    logits = logits[:, PROMPTS - 1 : -1] / temperature
    padding = batch["response_mask"] == 0
    found = entropy_from_logits(logits), logprobs_from_logits(logits, batch["responses"])
    return [each.masked_fill(padding, 0.0) for each in found]


def test_log_probabilities_and_entropies_are_those_of_repeated_prompts():
    for found, expected in zip(packed(model(NAME)), repeated(model("eager")), strict=True):
        torch.testing.assert_close(found, expected, atol=2e-6, rtol=1e-5)


def test_a_step_of_the_policy_has_the_gradients_of_repeated_prompts():
    gradients = []
    for of, forward in ((model(NAME), packed), (model("eager"), repeated)):
        loss(forward(of)[1]).backward()
        gradients.append([parameter.grad for parameter in of.parameters()])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-4)


def test_two_ranks_have_the_step_of_one(tmp_path):
    done = torchrun(verl_ranks.__file__, tmp_path, ranks=2)
    assert done.returncode == 0, done.stderr[-3000:]
    of = model(NAME)
    expected = packed(of)
    loss(expected[1]).backward()
    found = torch.load(tmp_path / "found.pt")
    for one, other in zip(found, [*expected, *(parameter.grad for parameter in of.parameters())], strict=True):
        torch.testing.assert_close(one, other.detach(), atol=2e-6, rtol=1e-4)


def test_no_response_sees_another():
    """A token of one response changes; not a bit of another one's log-probabilities does."""
    of = model(NAME).eval()
    grouper = PrefixGrouper([[4, 3, 5]])
    tokens = torch.randint(1, WORDS, (1, 12), generator=torch.Generator().manual_seed(0))
    positions = shared_prompts.build_position_ids_for_prefix_grouper(grouper)
    changed = tokens.clone()
    changed[0, 5] += 1 if changed[0, 5] < WORDS - 1 else -1
    logits, others = (
        of(each, position_ids=positions, prefix_grouper=grouper, use_cache=False).logits[0]
        for each in (tokens, changed)
    )
    same = (logits == others).all(-1).tolist()
    assert same == [True] * 5 + [False] * 2 + [True] * 5


def test_without_a_prefix_grouper_it_is_flashmask():
    tokens = torch.randint(1, WORDS, (2, 9), generator=torch.Generator().manual_seed(0))
    found, expected = (model(name)(tokens, use_cache=False).logits for name in (NAME, "flashmask"))
    assert torch.equal(found, expected)


def test_what_it_cannot_serve_is_refused():
    three = [torch.randn(1, heads, 12, 8) for heads in (4, 2, 2)]
    layer = torch.nn.Linear(1, 1)
    with pytest.raises(ValueError, match="sliding_window=4 came beside a PrefixGrouper"):
        prefix_grouper_attention(layer, *three, None, prefix_grouper=PrefixGrouper([[4, 3, 5]]), sliding_window=4)
    padded = PrefixGrouper([[4, 3, 5], [2, 1]], padding_mode="left")
    with pytest.raises(ValueError, match="pads in front of its prompts"):
        prefix_grouper_attention(layer, *three, None, prefix_grouper=padded)
