# SPDX-License-Identifier: Apache-2.0
"""Hybrid models in Transformers: layers with a state keep to the documents and forks of the mask, as attention does."""

import sys
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import patch

import pytest

torch = pytest.importorskip("torch", reason="Transformers runs on torch")
transformers = pytest.importorskip("transformers", reason="tests its integration")

from docs_scripts import docs_script  # noqa: E402

import flashmask.transformers  # noqa: E402
from flashmask import masks  # noqa: E402

families = docs_script("transformers_families")

if transformers.__version__ != families.read()[0]:
    pytest.skip(f"the table is about Transformers {families.read()[0]}", allow_module_level=True)
flashmask.transformers.register()

LENGTHS = (7, 1, 12, 4)
SERVED = [
    *("bailing_hybrid", "bamba", "falcon_h1", "granitemoehybrid", "inkling2_loop_text", "inkling2_text"),
    *(
        "inkling_text",
        "jamba",
        "kimi_linear",
        "lara_mini",
        "lfm2",
        "lfm2_moe",
        "lfm3",
        "nemotron_h",
        "olmo_hybrid",
        "qwen3_5_moe_text",
        "qwen3_5_text",
        "qwen3_next",
    ),
    *("qwen4_exp_text", "zamba", "zamba2"),
    *("falcon_mamba", "mamba", "mamba2"),
]
QUICK = [  # one of each kind
    *("qwen3_next", "bamba", "lfm2", "jamba", "granitemoehybrid", "kimi_linear", "inkling_text", "inkling2_text"),
    *("mamba", "mamba2"),
]
REFUSING_FORKS = {
    **dict.fromkeys(("falcon_mamba", "jamba", "mamba", "zamba"), "whose scan takes no state to begin from"),
    **dict.fromkeys(("inkling2_loop_text", "inkling2_text", "inkling_text"), "counts rows between a query and a key"),
    "qwen4_exp_text": "came together",  # its attention chooses keys, in a mask of pairs
}
by_family = pytest.mark.parametrize(
    "family", [each if each in QUICK else pytest.param(each, marks=pytest.mark.slow) for each in SERVED]
)


pytestmark = pytest.mark.usefixtures("one_thread")


def make(family, **changes):
    torch.manual_seed(0)
    model = families.make(family, "flashmask").train()
    for name, value in changes.items():
        setattr(model.config, name, value)
    return model


def ids_of(tokens, seed=1):
    return torch.randint(3, 60, (1, tokens), generator=torch.Generator().manual_seed(seed))


def positions_of(lengths):
    return torch.cat([torch.arange(length) for length in lengths])[None]


def results(model, *logits):
    """The logits of some calls as one tensor, and the gradients of all weights."""
    joined = torch.cat(logits, 1)
    weight = torch.randn(joined.shape, generator=torch.Generator().manual_seed(2))
    model.zero_grad()
    (joined * weight).sum().backward()
    return joined.detach(), {
        name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None
    }


def assert_same(found, expected, tolerance=5e-5):
    (logits, grads), (logits_of, grads_of) = found, expected
    assert float((logits - logits_of).abs().max()) < tolerance * float(logits_of.abs().max())
    assert grads.keys() == grads_of.keys()
    for name, grad in grads_of.items():
        assert float((grads[name] - grad).abs().max()) <= tolerance * max(float(grad.abs().max()), 1e-3), name


def alone(model, ids, lengths=LENGTHS):
    return [model(input_ids=each, use_cache=False).logits for each in ids.split(list(lengths), 1)]


@by_family
def test_packed_documents_are_what_they_are_alone(family):
    model, ids = make(family), ids_of(sum(LENGTHS))
    found = results(model, model(input_ids=ids, position_ids=positions_of(LENGTHS), use_cache=False).logits)
    assert_same(found, results(model, *alone(model, ids)))


@by_family
def test_a_document_changes_no_bit_of_another(family):
    model, ids = make(family), ids_of(sum(LENGTHS))
    inputs = {"position_ids": positions_of(LENGTHS), "use_cache": False}
    before = model(input_ids=ids, **inputs).logits
    spoilt = ids.clone()
    spoilt[0, 8:20] = (spoilt[0, 8:20] + 7) % 50 + 3
    after = model(input_ids=spoilt, **inputs).logits
    assert torch.equal(before[:, :8], after[:, :8]) and torch.equal(before[:, 20:], after[:, 20:])
    assert not torch.equal(before[:, 8:20], after[:, 8:20])


def forked(prompt, answers):
    """Row indices and positions of answers that see their prompt and themselves."""
    total = prompt + sum(answers)
    ends, at = [total] * prompt, prompt
    for length in answers:
        at += length
        ends += [at] * length
    rows = torch.tensor(ends, dtype=torch.int32)[None, None, :, None]
    positions = torch.cat([torch.arange(prompt), *(torch.arange(prompt, prompt + length) for length in answers)])[None]
    return {"startend_row_indices": rows, "position_ids": positions, "use_cache": False}


@by_family
def test_a_shared_prompt_is_what_repeated_prompts_are(family):
    model, prompt, answers = make(family), 6, (5, 1, 8)
    ids = ids_of(prompt + sum(answers))
    if family in REFUSING_FORKS:
        with pytest.raises(ValueError, match=REFUSING_FORKS[family]):
            model(input_ids=ids, **forked(prompt, answers))
        return
    found = results(model, model(input_ids=ids, **forked(prompt, answers)).logits[:, prompt:])
    shared, *others = ids.split([prompt, *answers], 1)
    repeated = [model(input_ids=torch.cat([shared, each], 1), use_cache=False).logits[:, prompt:] for each in others]
    assert_same(found, results(model, *repeated))


@pytest.mark.parametrize("family", QUICK)
def test_lengths_and_a_batch_with_padding_say_the_same(family):
    model, ids = make(family), ids_of(sum(LENGTHS))
    expected = torch.cat(alone(model, ids), 1)
    lengths = torch.tensor([0, *torch.tensor(LENGTHS).cumsum(0)], dtype=torch.int32)
    said = {"cu_seq_lens_q": lengths, "cu_seq_lens_k": lengths, "max_length_q": 12, "max_length_k": 12}
    said["seq_idx"] = torch.repeat_interleave(torch.arange(4, dtype=torch.int32), torch.tensor(LENGTHS))[None]
    if family != "granitemoehybrid":  # hands no positions to attention, and takes lengths
        said["position_ids"] = positions_of(LENGTHS)
    found = model(input_ids=ids, use_cache=False, **said).logits
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-3)
    batch = torch.cat([ids, torch.cat([ids[:, 8:20], torch.zeros(1, 12, dtype=torch.long)], 1)])
    mask = torch.ones(2, 24, dtype=torch.long)
    mask[1, 12:] = 0
    positions = torch.cat([positions_of(LENGTHS), positions_of((5, 7, 12))])
    found = model(input_ids=batch, attention_mask=mask, position_ids=positions, use_cache=False).logits
    torch.testing.assert_close(found[:1], expected, atol=2e-5, rtol=1e-3)
    torch.testing.assert_close(found[1:, :12], torch.cat(alone(model, ids[:, 8:20], (5, 7)), 1), atol=2e-5, rtol=1e-3)


@pytest.mark.parametrize("family", QUICK)
def test_positions_of_one_entry_are_those_of_a_batch(family):
    model, batch = make(family), torch.cat([ids_of(sum(LENGTHS)), ids_of(sum(LENGTHS), seed=2)])
    found = model(input_ids=batch, position_ids=positions_of(LENGTHS), use_cache=False).logits
    expected = torch.cat([torch.cat(alone(model, ids[None]), 1) for ids in batch])
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-3)


@pytest.mark.parametrize("family", QUICK)
def test_an_empty_cache_changes_nothing(family):
    model, ids = make(family).eval(), ids_of(sum(LENGTHS))
    found = model(input_ids=ids, position_ids=positions_of(LENGTHS), use_cache=True).logits
    torch.testing.assert_close(found, torch.cat(alone(model, ids), 1), atol=2e-5, rtol=1e-3)


@pytest.mark.parametrize("family", ["qwen3_next", "bamba", "mamba", "mamba2"])
def test_checkpoints_compute_layers_again_with_their_own_mask(family):
    model, ids = make(family), ids_of(sum(LENGTHS))
    expected = results(model, *alone(model, ids))
    model.gradient_checkpointing_enable({"use_reentrant": False})
    found = model(input_ids=ids, position_ids=positions_of(LENGTHS), use_cache=False).logits
    model(input_ids=ids_of(9), use_cache=False)  # another mask before the backward computes the first one again
    assert_same(results(model, found), expected)


def test_a_model_that_is_given_the_name_later_is_served():
    torch.manual_seed(0)
    model, ids = families.make("qwen3_next", "eager").train(), ids_of(sum(LENGTHS))
    expected = torch.cat(alone(model, ids), 1)
    inputs = {"position_ids": positions_of(LENGTHS), "use_cache": False}
    assert not torch.allclose(model(input_ids=ids, **inputs).logits, expected, atol=1e-2)
    model.set_attn_implementation("flashmask")
    torch.testing.assert_close(model(input_ids=ids, **inputs).logits, expected, atol=2e-5, rtol=1e-3)
    model.set_attn_implementation("eager")
    assert not torch.allclose(model(input_ids=ids, **inputs).logits, expected, atol=1e-2)


@pytest.mark.parametrize("way", ["by its configuration", "twice", "and only the model in it is called"])
def test_a_model_that_is_given_the_name_by_its_configuration_is_served(way):
    torch.manual_seed(0)
    model, ids = families.make("lfm2", "eager"), ids_of(sum(LENGTHS))
    model.config._attn_implementation = "flashmask"
    if way == "twice":
        model.set_attn_implementation("flashmask")
    called = model.model if "model in it" in way else model

    def compute(**inputs):
        return called(**inputs, use_cache=False)[0]

    expected = torch.cat([compute(input_ids=each) for each in ids.split(list(LENGTHS), 1)], 1)
    found = compute(input_ids=ids, position_ids=positions_of(LENGTHS))
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-3)


def test_a_model_that_cannot_be_served_is_refused_where_its_configuration_gives_it_the_name():
    model = families.make("doge", "eager")
    model.config._attn_implementation = "flashmask"
    with pytest.raises(ValueError, match="adds numbers of its own"):
        model(input_ids=ids_of(9))


def test_the_forward_of_a_model_refuses_documents_that_it_alone_tells_to_attention():
    model, ids = make("lfm2").model, ids_of(sum(LENGTHS))
    with pytest.raises(ValueError, match="Lfm2Attention of a model with layers that carry a state"):
        model.forward(input_ids=ids, position_ids=positions_of(LENGTHS), use_cache=False)
    plain = model(input_ids=ids, use_cache=False).last_hidden_state
    assert torch.equal(model.forward(input_ids=ids, use_cache=False).last_hidden_state, plain)


def test_a_hybrid_family_without_layers_with_a_state_is_served_as_attention():
    with patch.dict(families._OWN, granitemoehybrid={"layer_types": ["attention"] * 2}):
        model, ids = make("granitemoehybrid"), ids_of(sum(LENGTHS))
    found = model(input_ids=ids, position_ids=positions_of(LENGTHS), use_cache=False).logits
    torch.testing.assert_close(found, torch.cat(alone(model, ids), 1), atol=2e-5, rtol=1e-3)


@pytest.mark.parametrize("family", ["lfm2", "mamba2"])
def test_documents_behind_a_cache_are_refused(family):
    model, ids = make(family).eval(), ids_of(20)
    cache = model(input_ids=ids[:, :8], use_cache=True).cache
    with pytest.raises(ValueError, match="behind a cache that holds tokens already"):
        model(input_ids=ids[:, 8:], position_ids=torch.tensor([[8, 9, *range(10)]]), cache=cache)


def test_a_model_that_another_process_pickled_is_served():
    model, ids = make("qwen3_next"), ids_of(sum(LENGTHS))
    module = sys.modules[type(model).__module__]
    for name in ("causal_conv1d_fn", "torch_chunk_gated_delta_rule"):  # as in a process that made no such model
        setattr(module, name, getattr(module, name).__flashmask_original__)
    found = model(input_ids=ids, position_ids=positions_of(LENGTHS), use_cache=False).logits
    torch.testing.assert_close(found, torch.cat(alone(model, ids), 1), atol=2e-5, rtol=1e-3)


def test_models_in_several_threads_keep_to_their_own_masks():
    model, ids = make("qwen3_next").eval(), ids_of(sum(LENGTHS))
    expected = torch.cat(alone(model, ids), 1).detach()

    def compute(lengths):
        with torch.no_grad():
            return [model(input_ids=ids, position_ids=positions_of(lengths), use_cache=False).logits for _ in range(5)]

    with ThreadPoolExecutor(2) as pool:
        packed, plain = pool.map(compute, [LENGTHS, (sum(LENGTHS),)])
    for each in packed:
        torch.testing.assert_close(each, expected, atol=2e-5, rtol=1e-3)
    assert all(torch.equal(each, plain[0]) for each in plain)


@pytest.mark.parametrize("family", ["jamba", pytest.param("inkling_text", marks=pytest.mark.slow)])
def test_a_compiled_model_runs_a_plain_sequence(family):
    model, ids = make(family).eval(), ids_of(sum(LENGTHS))
    compiled = torch.compile(model, backend="eager")
    with torch.no_grad():
        found, expected = (each(input_ids=ids, use_cache=False).logits for each in (compiled, model))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_a_compiled_model_keeps_documents_apart():
    model, ids = make("qwen3_next"), ids_of(sum(LENGTHS))
    expected = results(model, *alone(model, ids))
    compiled = torch.compile(model, backend="aot_eager")
    found = compiled(input_ids=ids, position_ids=positions_of(LENGTHS), use_cache=False).logits
    assert_same(results(model, found), expected)


@pytest.mark.parametrize("family", QUICK)
def test_generates_what_eager_attention_generates(family):
    ids = ids_of(9)
    found, expected = (
        families.make(family, each).generate(ids, max_new_tokens=6, do_sample=False).tolist()
        for each in ("flashmask", "eager")
    )
    assert found == expected


@pytest.mark.parametrize(
    ("family", "layers"),
    [
        ("minimax", "MiniMaxLightningAttention"),
        ("recurrent_gemma", "RecurrentGemmaRecurrentBlock"),
        ("zaya", "ZayaCCAProjection"),
    ],
)
def test_layers_that_are_not_reached_refuse_documents(family, layers):
    model, ids = make(family), ids_of(sum(LENGTHS))
    with pytest.raises(ValueError, match=f"does not reach its layers that carry a state .*{layers}"):
        model(input_ids=ids, position_ids=positions_of(LENGTHS), use_cache=False)
    assert model(input_ids=ids, use_cache=False).logits.shape[1] == sum(LENGTHS)


def test_models_without_a_layer_that_reads_a_mask_refuse_documents():
    sizes = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 1, "intermediate_size": 48, "pad_token_id": 0}
    fourier = transformers.FNetConfig(**sizes)
    fourier._attn_implementation = "flashmask"
    ids, packed = ids_of(sum(LENGTHS)), {"position_ids": positions_of(LENGTHS)}
    recurrent, mixing = make("xlstm").eval(), transformers.FNetForMaskedLM(fourier).eval()
    forks = {"startend_row_indices": forked(6, (5, 1, 12))["startend_row_indices"]}
    for model, mask in ((recurrent, packed), (recurrent, forks), (mixing, packed)):
        with pytest.raises(ValueError, match="none of its layers reads a mask"):
            model(input_ids=ids, **mask)
    assert recurrent(input_ids=ids, use_cache=False).logits.shape == mixing(input_ids=ids).logits.shape


def test_masks_that_are_no_tree_are_refused():
    model = make("qwen3_next")
    rows = masks.sliding_window(24, 24, 4).to_startend_row_indices()[0]
    with pytest.raises(ValueError, match="column 1 is seen by row"):
        model(input_ids=ids_of(24), startend_row_indices=torch.from_numpy(rows), use_cache=False)


def test_packed_rollouts_are_what_each_is_alone():
    from flashmask.data import pack_rollouts

    model, ids = make("qwen3_next"), ids_of(40)[0].tolist()
    rollouts = [ids[:10], ids[:6] + ids[20:27], ids[:6] + ids[20:23] + ids[30:34], ids[35:40]]
    batch = pack_rollouts(rollouts, pad_to_multiple_of=16)
    inputs = {name: batch[name] for name in ("input_ids", "position_ids", "startend_row_indices")}
    logits = model(**inputs, use_cache=False).logits[0]
    for rollout, rows in zip(rollouts, batch["rows"], strict=True):
        alone = model(input_ids=torch.tensor([rollout]), use_cache=False).logits[0]
        torch.testing.assert_close(logits[rows[: len(rollout)]], alone, atol=2e-5, rtol=1e-3)


def test_long_context_refuses_layers_with_a_state_by_name():
    from flashmask.training import long_context

    with pytest.raises(ValueError, match=r"layers that carry a state \(Qwen3NextGatedDeltaNet\)"):
        long_context(make("qwen3_next"), chunk=8)
