# SPDX-License-Identifier: Apache-2.0
"""Models of Transformers under attn_implementation="flashmask": the same logits and gradients as without it."""

import warnings

import pytest

torch = pytest.importorskip("torch", reason="Transformers runs on torch")
transformers = pytest.importorskip("transformers", reason="tests its integration")

import numpy as np  # noqa: E402

import flashmask  # noqa: E402
import flashmask.transformers  # noqa: E402
from flashmask._plans import cache, live_plan  # noqa: E402
from flashmask._torch import shared  # noqa: E402
from flashmask.data import answer_log_probs, pack  # noqa: E402
from flashmask.transformers import _attention, _once  # noqa: E402

flashmask.transformers.register()
flashmask.transformers.register("flashmask-everywhere", visit="all")

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 40,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
}
CONFIGS = {
    "llama": lambda: transformers.LlamaConfig(**SIZES),
    "qwen2": lambda: transformers.Qwen2Config(**SIZES),
    "mistral": lambda: transformers.MistralConfig(**SIZES, sliding_window=5),
    "gemma3": lambda: transformers.Gemma3TextConfig(
        **SIZES,
        head_dim=16,
        sliding_window=5,
        query_pre_attn_scalar=7,
        layer_types=["sliding_attention", "full_attention"],
    ),
}
LENGTHS = [7, 1, 12, 4]
# Largest difference of logits, and of gradients against the largest gradient: the models are random, logits below 1.
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2e-2}


pytestmark = pytest.mark.usefixtures("one_thread")


def model(name, implementation="flashmask", dtype=torch.float32, **changes):
    torch.manual_seed(0)
    config = CONFIGS[name]()
    config.update(changes)
    made = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=implementation)
    return made.to(dtype).eval()


def packed_documents(lengths=LENGTHS):
    """input_ids and position_ids [1, tokens]."""
    ids = torch.randint(1, 40, (1, sum(lengths)), generator=torch.Generator().manual_seed(1))
    return ids, torch.cat([torch.arange(length) for length in lengths])[None]


def gradients(made, logits):
    """Gradients of a fixed random combination of logits [B, S, V], all parameters in one vector."""
    weights = torch.randn(logits.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float32)
    made.zero_grad()
    (logits.float() * weights).sum().backward()
    return torch.cat([p.grad.float().flatten() for p in made.parameters() if p.grad is not None])


def assert_same(found, expected, dtype=torch.float32):
    for a, b in zip(found, expected, strict=True):
        scale = max(1.0, float(b.detach().abs().max()))
        assert float((a.float() - b.float()).detach().abs().max()) <= TOLERANCE[dtype] * scale


def each_alone(made, ids, lengths=LENGTHS):
    return torch.cat([made(part, use_cache=False).logits for part in ids.split(lengths, 1)], 1)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("use_cache", [False, True], ids=["no_cache", "cache"])
@pytest.mark.parametrize("name", CONFIGS)
def test_packed_documents_are_each_document_alone(name, use_cache, dtype):
    made = model(name, dtype=dtype)
    ids, positions = packed_documents()
    alone = each_alone(made, ids)
    expected = alone.detach(), gradients(made, alone)
    logits = made(ids, position_ids=positions, use_cache=use_cache).logits
    assert_same((logits.detach(), gradients(made, logits)), expected, dtype)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("name", CONFIGS)
def test_packed_documents_are_eager_attention_under_the_dense_mask(name, dtype):
    ids, positions = packed_documents()
    results = []
    for implementation in ("flashmask", "eager"):
        made = model(name, implementation, dtype)
        logits = made(ids, position_ids=positions, use_cache=False).logits
        results.append((logits.detach(), gradients(made, logits)))
    assert_same(*results, dtype)


def test_autocast_runs_in_its_dtype():
    # Rotary embedding leaves queries and keys in float32 and values in bfloat16.
    ids, positions = packed_documents()
    results = []
    for implementation in ("flashmask", "eager"):
        made = model("llama", implementation)
        with torch.autocast("cpu", torch.bfloat16):
            logits = made(ids, position_ids=positions, use_cache=False).logits
        results.append((logits.detach(), gradients(made, logits)))
    assert_same(*results, torch.bfloat16)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", CONFIGS)
def test_padding_is_seen_by_nobody(name, side):
    ids = torch.randint(1, 40, (2, 14), generator=torch.Generator().manual_seed(3))
    real = torch.ones(2, 14, dtype=torch.long)
    real[0, slice(0, 5) if side == "left" else slice(9, 14)] = 0
    positions = (real.cumsum(-1) - 1).masked_fill(real == 0, 1)
    results = []
    for implementation in ("flashmask", "eager"):
        made = model(name, implementation)
        logits = made(ids, attention_mask=real, position_ids=positions).logits * real[..., None]
        results.append((logits.detach(), gradients(made, logits)))
    assert_same(*results)


@pytest.mark.parametrize("filler", [0, 1, 9])
def test_padding_amid_a_document_does_not_split_it(filler):
    ids = torch.randint(1, 40, (1, 8), generator=torch.Generator().manual_seed(4))
    real = torch.tensor([[1, 1, 0, 0, 1, 1, 1, 1]])
    positions = torch.tensor([[0, 1, filler, filler, 2, 3, 4, 5]])
    results = [
        model("llama", each)(ids, attention_mask=real, position_ids=positions).logits[:, real[0] == 1]
        for each in ("flashmask", "eager")
    ]
    assert_same(results[:1], results[1:])


def test_positions_without_a_batch_are_refused():
    ids, positions = packed_documents()
    with pytest.raises(
        ValueError, match=rf"position_ids has shape \[{ids.shape[1]}\]; expected \[1 or B, S\].*\[None\]"
    ):
        model("llama")(ids, position_ids=positions[0], use_cache=False)


@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_cu_seq_lens_say_where_documents_begin(name):
    made = model(name)
    ids, positions = packed_documents()
    bounds = torch.tensor([0, *torch.tensor(LENGTHS).cumsum(0)], dtype=torch.int32)
    lengths = {"cu_seq_lens_q": bounds, "cu_seq_lens_k": bounds, "max_length_q": 12, "max_length_k": 12}
    # Positions that never restart, so that the lengths alone say it; rotary attention only looks at differences.
    logits = made(ids, position_ids=torch.arange(ids.shape[1])[None], **lengths).logits
    assert_same([logits], [each_alone(made, ids)])
    assert_same([made(ids, position_ids=positions, **lengths).logits], [logits])


def preferences():
    """Questions with two answers, of lengths that several tiles and two sequences of 160 tokens hold."""
    draw = torch.Generator().manual_seed(13)
    sizes = [(3, 2, 3), (1, 3, 1), (40, 25, 61), (9, 70, 1), (17, 20, 20)]
    names = ("prompt_ids", "chosen_ids", "rejected_ids")
    return [
        {name: torch.randint(1, 40, (size,), generator=draw).tolist() for name, size in zip(names, each, strict=True)}
        for each in sizes
    ]


def question_and_answer_alone():
    """Each answer behind its question, in the order of a batch's answers: ids [1, tokens], and rows before it."""
    for pair in preferences():
        for answer in (pair["chosen_ids"], pair["rejected_ids"]):
            yield torch.tensor([pair["prompt_ids"] + answer]), len(pair["prompt_ids"])


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("name", CONFIGS)
def test_answers_that_share_a_question_are_as_likely_as_alone(name, dtype):
    made = model(name, dtype=dtype)
    packed = pack(preferences(), length=160)
    assert len(packed["input_ids"]) == 2
    inputs = {each: packed[each] for each in ("input_ids", "position_ids", "startend_row_indices")}
    together = answer_log_probs(made(**inputs).logits, packed)
    alone = []
    for ids, first in question_and_answer_alone():
        log_probs = made(ids).logits[0, first - 1 : -1].float().log_softmax(-1)
        alone.append(log_probs.gather(-1, ids[0, first:, None]).sum())
    expected = torch.stack(alone)
    assert_same((together.detach(), gradients(made, together)), (expected.detach(), gradients(made, expected)), dtype)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_answers_that_share_a_question_are_rewarded_as_alone(dtype):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**SIZES, num_labels=1)
    made = transformers.AutoModelForTokenClassification.from_config(config, attn_implementation="flashmask")
    made = made.to(dtype).eval()
    packed = pack(preferences(), length=160)
    inputs = {each: packed[each] for each in ("input_ids", "position_ids", "startend_row_indices")}
    sequences, _, ends = packed["answers"].unbind(-1)
    together = made(**inputs).logits[sequences, ends - 1, 0]
    expected = torch.stack([made(ids).logits[0, -1, 0] for ids, _ in question_and_answer_alone()])
    assert_same((together.detach(), gradients(made, together)), (expected.detach(), gradients(made, expected)), dtype)


def question_and_answers():
    """A shared question, and the dense mask [S, S] it stands for, from the definition."""
    packed = pack([{"prompt_ids": [3, 4, 5, 6], "chosen_ids": [7, 8, 9], "rejected_ids": [10, 11, 12, 13]}], length=13)
    part = torch.tensor([0] * 4 + [1] * 3 + [2] * 4 + [3] * 2)
    sees = (part[None] == part[:, None]) | (part[None] == 0) & (part[:, None] < 3)
    return packed, sees.tril() & (part < 3)


@pytest.mark.parametrize("way", ["startend_row_indices", "attention_mask"])
def test_row_indices_go_through_the_model_call(way):
    packed, _ = question_and_answers()
    made = model("llama")
    logits = made(
        packed["input_ids"], position_ids=packed["position_ids"], **{way: packed["startend_row_indices"]}
    ).logits
    chosen, rejected = ([3, 4, 5, 6, *answer] for answer in ([7, 8, 9], [10, 11, 12, 13]))
    assert_same([logits[:, :7]], [made(torch.tensor([chosen])).logits])
    assert_same([logits[:, 7:11]], [made(torch.tensor([rejected])).logits[:, 4:]])


@pytest.mark.parametrize("vectors", [1, 2, 4])
@pytest.mark.parametrize("name", ["mistral", "gemma3"])
def test_row_indices_stay_within_the_window_of_a_layer(name, vectors):
    packed, sees = question_and_answers()
    size = sees.shape[0]
    given = packed["startend_row_indices"]
    first = torch.arange(size, dtype=torch.int32)[:, None]
    full = torch.full((size, 1), size, dtype=torch.int32)
    if vectors == 2:
        given = torch.cat([given[0, 0], full], -1)[None, None]
    elif vectors == 4:  # causality said by the indices themselves
        given = torch.cat([given[0, 0], full, torch.zeros_like(full), first], -1)[None, None]
    places = packed["position_ids"].T
    windowed = sees & (places - places.T < 5)
    by_layer = {"full_attention": sees, "sliding_attention": windowed}
    dense = {kind: torch.where(each, 0.0, -1e30)[None, None] for kind, each in by_layer.items()}
    inputs = {"input_ids": packed["input_ids"], "position_ids": packed["position_ids"]}
    expected = model(name, "eager")(
        **inputs, attention_mask=dense if name == "gemma3" else dense["sliding_attention"]
    ).logits
    assert_same([model(name)(**inputs, startend_row_indices=given).logits[:, :11]], [expected[:, :11]])


@pytest.mark.parametrize("heads", [2, 4])
def test_row_indices_may_differ_between_heads(heads):
    size = 10
    ends = torch.randint(
        1, size + 1, (1, heads, size, 1), generator=torch.Generator().manual_seed(5), dtype=torch.int32
    )
    ends = torch.maximum(ends, torch.arange(1, size + 1, dtype=torch.int32)[:, None])  # a row sees itself
    rows = torch.arange(size)[:, None]
    sees = ((rows < ends[..., 0][:, :, None]) & torch.ones(size, size, dtype=torch.bool).tril()).repeat_interleave(
        4 // heads, 1
    )
    ids = torch.randint(1, 40, (1, size), generator=torch.Generator().manual_seed(6))
    expected = model("llama", "eager")(ids, attention_mask=torch.where(sees, 0.0, -1e30)).logits
    assert_same([model("llama")(ids, startend_row_indices=ends).logits], [expected])


def test_row_indices_and_padding_hold_together():
    ids = torch.randint(1, 40, (2, 9), generator=torch.Generator().manual_seed(7))
    real = torch.ones(2, 9, dtype=torch.long)
    real[0, :3] = 0
    nothing_hidden = torch.full((1, 1, 9, 1), 9, dtype=torch.int32)
    made = model("llama")
    expected = made(ids, attention_mask=real).logits
    found = made(ids, attention_mask=real, startend_row_indices=nothing_hidden).logits
    assert_same([found[real == 1]], [expected[real == 1]])


def test_dense_booleans_are_a_mask():
    packed, sees = question_and_answers()
    inputs = {"input_ids": packed["input_ids"], "position_ids": packed["position_ids"]}
    made = model("llama")
    dense = made(**inputs, attention_mask=sees[None, None]).logits
    assert_same([dense], [made(**inputs, startend_row_indices=packed["startend_row_indices"]).logits])


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("name", CONFIGS)
def test_prefill_in_pieces_is_prefill_at_once(name, cache):
    made = model(name)
    ids = torch.randint(1, 40, (2, 15), generator=torch.Generator().manual_seed(8))
    kinds = {"dynamic": transformers.DynamicCache, "static": transformers.StaticCache}
    held = kinds[cache](config=made.config, **({"max_cache_len": 20} if cache == "static" else {}))
    with torch.no_grad():
        pieces = [made(piece, past_key_values=held).logits for piece in ids.split([6, 7, 1, 1], 1)]
        assert_same([torch.cat(pieces, 1)], [made(ids, use_cache=False).logits])


@pytest.mark.parametrize("cache", [None, "static"])
@pytest.mark.parametrize("name", CONFIGS)
def test_generates_what_eager_attention_generates(name, cache):
    ids = torch.randint(1, 40, (2, 8), generator=torch.Generator().manual_seed(9))
    real = torch.ones(2, 8, dtype=torch.long)
    real[0, :3] = 0
    options = {"max_new_tokens": 9, "do_sample": False, "cache_implementation": cache, "disable_compile": True}
    found, expected = (
        model(name, each).generate(ids, attention_mask=real, **options) for each in ("flashmask", "eager")
    )
    assert found.tolist() == expected.tolist()


def test_single_tokens_fall_back_with_one_warning():
    made = model("llama")
    _once._warned.clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            made.generate(torch.ones(1, 4, dtype=torch.long), max_new_tokens=4, do_sample=False)
    said = [str(each.message) for each in caught if "flashmask" in str(each.message)]
    assert len(said) == 1 and "scaled_dot_product_attention" in said[0]


def test_images_see_themselves_both_ways():
    from transformers.models.gemma3.modeling_gemma3 import create_masks_for_vision_model

    ids = torch.randint(1, 40, (2, 12), generator=torch.Generator().manual_seed(10))
    images = torch.tensor([[-1, 0, 0, 0, -1, -1, 1, 1, -1, -1, -1, -1], [-1, -1, 0, 0, 0, 0, 0, 0, 0, -1, -1, -1]])
    real = torch.ones(2, 12, dtype=torch.bool)
    real[0, 9:] = False
    results = []
    for implementation in ("flashmask", "eager"):
        made = model("gemma3", implementation)
        masks = create_masks_for_vision_model(
            made.config, torch.zeros(2, 12, 32), real, None, torch.arange(12)[None], images
        )
        results.append([made(ids, attention_mask=masks, use_cache=False).logits[real]])
    assert_same(*results)
    assert float((results[0][0] - model("gemma3")(ids, attention_mask=real).logits[real]).detach().abs().max()) > 1e-4


class Spy:
    """Calls of the operators: the row indices and the dropout they came with."""

    def __init__(self, monkeypatch):
        self.indices, self.dropouts = [], []
        self.forward = _attention.forward
        monkeypatch.setattr(_attention, "forward", self)

    def __call__(self, q, k, v, call):
        self.indices.append(call.mask)
        self.dropouts.append(call.dropout)
        return self.forward(q, k, v, call)


def test_all_layers_of_a_kind_share_one_mask(monkeypatch):
    changes = {"num_hidden_layers": 4, "layer_types": ["sliding_attention", "full_attention"] * 2}
    made = model("gemma3", **changes)
    spy = Spy(monkeypatch)
    ids, positions = packed_documents()
    made(ids, position_ids=positions)
    assert len(spy.indices) == 4
    assert spy.indices[0] is spy.indices[2] and spy.indices[1] is spy.indices[3]
    assert not torch.equal(spy.indices[0], spy.indices[1])


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("implementation", ["flashmask", "flashmask-everywhere"])
def test_all_layers_share_one_plan_forward_and_backward(monkeypatch, implementation, checkpointed):
    made = model("llama", implementation, num_hidden_layers=4).train()
    if checkpointed:
        made.gradient_checkpointing_enable()
    cache.plans.clear()
    made_plans = []

    class Counted(live_plan.LivePlan):
        def __init__(self, *arguments):
            made_plans.append(arguments[0])
            super().__init__(*arguments)

    monkeypatch.setattr(live_plan, "LivePlan", Counted)
    for seed in (11, 12):
        ids = torch.randint(1, 40, (1, 24), generator=torch.Generator().manual_seed(seed))
        positions = torch.cat([torch.arange(seed), torch.arange(24 - seed)])[None]
        made(ids, position_ids=positions, labels=ids, use_cache=False).loss.backward()
    assert len(made_plans) == 2  # one for each batch


@pytest.mark.parametrize("way", ["position_ids", "startend_row_indices", "booleans", "windows"])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_visiting_every_tile_changes_no_bit(dtype, way):
    lengths = [70, 1, 130, 9]
    ids, positions = packed_documents(lengths)
    said = {}
    if way in ("startend_row_indices", "booleans"):
        ends = torch.cat([torch.full((n,), end) for n, end in zip(lengths, np.cumsum(lengths), strict=True)]).int()
        rows = torch.arange(len(ends))[:, None]
        dense = (rows >= rows.T) & (rows < ends)
        said = {way: ends[None, None, :, None]} if way[0] == "s" else {"attention_mask": dense[None, None]}
    results = []
    for implementation in ("flashmask", "flashmask-everywhere"):
        made = model("mistral" if way == "windows" else "llama", implementation, dtype)
        logits = made(ids, position_ids=positions, use_cache=False, **said).logits
        results.append((logits.detach(), gradients(made, logits)))
    assert all(map(torch.equal, *results))


def test_visiting_every_tile_visits_every_tile(monkeypatch):
    made = model("llama", "flashmask-everywhere")
    asked = []
    call = flashmask.plan
    monkeypatch.setattr(flashmask, "plan", lambda *given, **options: asked.append(options) or call(*given, **options))
    ids, positions = packed_documents()
    made(ids, position_ids=positions)
    assert [each["visit"] for each in asked] == ["all", "all"]  # two layers


def test_visiting_every_tile_drops_the_same():
    ids, positions = packed_documents()
    logits = []
    for implementation in ("flashmask", "flashmask-everywhere"):
        made = model("llama", implementation, attention_dropout=0.25).train()
        torch.manual_seed(3)
        logits.append(made(ids, position_ids=positions).logits)
    assert torch.equal(*logits)
    assert not torch.allclose(logits[0], made.eval()(ids, position_ids=positions).logits)


@pytest.mark.skipif(torch.__version__ < "2.7", reason="graphs of PyTorch 2.6 stop in Transformers' own code before")
def test_visiting_every_tile_refuses_compiling():
    ids, positions = packed_documents()
    made = model("llama", "flashmask-everywhere").eval()
    torch._dynamo.reset()
    with pytest.raises(Exception, match="run the model without"):
        torch.compile(made, backend="eager", fullgraph=True)(ids, position_ids=positions, use_cache=False)


def test_a_name_has_one_meaning():
    with pytest.raises(ValueError, match=r"name 'flashmask' belongs to .* in the attention registry"):
        flashmask.transformers.register("flashmask", visit="all")
    with pytest.raises(ValueError, match="visit is 'none'; expected one of 'active', 'all'"):
        flashmask.transformers.register("flashmask-none", visit="none")
    flashmask.transformers.register("flashmask-everywhere", visit="all")


def test_the_next_batch_gets_its_own_mask():
    made = model("llama")
    ids, positions = packed_documents()
    first = made(ids, position_ids=positions).logits
    positions.copy_(torch.arange(ids.shape[1])[None])  # the same tensor, written to
    assert_same([made(ids, position_ids=positions).logits], [made(ids).logits])
    assert float((first - made(ids).logits).detach().abs().max()) > 1e-4


@pytest.mark.parametrize("way", ["position_ids", "startend_row_indices", "attention_mask", "booleans"])
def test_masks_do_not_outlive_what_they_came_from(way):
    shared._shared.clear()
    packed, sees = question_and_answers()
    said = {"booleans": sees[None, None], "attention_mask": packed["startend_row_indices"]}.get(way, packed.get(way))
    model("llama")(packed["input_ids"], **{"attention_mask" if way == "booleans" else way: said})
    del packed, sees, said
    assert not shared._shared


def test_dropout_is_for_training(monkeypatch):
    made = model("llama", attention_dropout=0.25)
    spy = Spy(monkeypatch)
    ids, positions = packed_documents()
    torch.manual_seed(0)
    made(ids, position_ids=positions)
    made.train()(ids, position_ids=positions)
    assert spy.dropouts == [0.0, 0.0, 0.25, 0.25]


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing_changes_nothing(reentrant):
    ids, positions = packed_documents()
    made = model("mistral").train()
    results = []
    for checkpointed in (False, True):
        if checkpointed:
            made.gradient_checkpointing_enable({"use_reentrant": reentrant})
            made.enable_input_require_grads()
        logits = made(ids, position_ids=positions, use_cache=False).logits
        results.append((logits.detach(), gradients(made, logits)))
    assert_same(*results)


@pytest.mark.slow
def test_compiles_once_for_all_lengths_and_documents():
    torch._dynamo.reset()
    made = model("mistral", num_hidden_layers=1)
    graphs = []
    compiled = torch.compile(made, backend=lambda graph, _: graphs.append(graph) or graph, fullgraph=True)
    for lengths in (LENGTHS, [5, 9, 3], [31]):
        ids, positions = packed_documents(lengths)
        with torch.no_grad():
            logits = compiled(ids, position_ids=positions, use_cache=False).logits
            assert_same([logits], [made(ids, position_ids=positions, use_cache=False).logits])
    assert len(graphs) == 2  # the first lengths, then any


def test_trains_on_packed_examples():
    examples = [{"prompt_ids": [5, 6, 7], "completion_ids": [8, 9]}, {"prompt_ids": [11, 12], "completion_ids": [13]}]
    made = model("llama")
    packed = pack(examples, length=16)
    losses = [
        made(torch.tensor([ids]), labels=torch.tensor([labels]), num_items_in_batch=1).loss
        for ids, labels in (([5, 6, 7, 8, 9], [-100] * 3 + [8, 9]), ([11, 12, 13], [-100, -100, 13]))
    ]
    assert_same([made(**packed, num_items_in_batch=1).loss], [sum(losses)])
