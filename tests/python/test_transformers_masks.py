# SPDX-License-Identifier: Apache-2.0
"""What masks say: Transformers' mask functions against their own evaluation, layers' calls, refusals, registration."""

import warnings
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="Transformers runs on torch")
transformers = pytest.importorskip("transformers", reason="tests its integration")

from transformers import AttentionInterface, AttentionMaskInterface, masking_utils  # noqa: E402
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS  # noqa: E402

import flashmask  # noqa: E402
from flashmask.transformers import _once, _register, flashmask_attention_forward, flashmask_mask, register  # noqa: E402
from flashmask.transformers._dtype import refuse_float32  # noqa: E402
from flashmask.transformers._indices import Indices  # noqa: E402
from flashmask.transformers._layer_mask import Call, layer_mask  # noqa: E402
from flashmask.transformers._recognise import Keys, recognise_traced  # noqa: E402

register()

PACKED = torch.tensor([[0, 0, 0, 1, 2, 2, 2, 2, 3], [0, 0, 1, 1, 1, 1, 1, 1, 1]])
POSITIONS = torch.tensor([[0, 1, 2, 0, 0, 1, 2, 3, 0], [0, 1, 0, 1, 2, 3, 4, 5, 6]])
IMAGES = torch.tensor([[-1, 0, 0, -1, -1, 1, 1, -1, -1], [-1, -1, -1, 0, 0, 0, 0, 0, -1]])


def packed(inside, *, beside=(), positions=POSITIONS, documents=PACKED):
    """A mask of positions inside documents, as Transformers 5.24 joins them: blocks come in between."""
    inside = masking_utils.remap_positions_for_packed_sequence(inside, positions)
    if beside:
        inside = masking_utils.or_masks(inside, *beside)
    return masking_utils.and_masks(inside, masking_utils.packed_sequence_mask_function(documents))


def packed_first(inside):
    """A mask of positions inside documents, as versions before 5.24 join them."""
    return masking_utils.and_masks(
        masking_utils.packed_sequence_mask_function(PACKED),
        masking_utils.remap_positions_for_packed_sequence(inside, POSITIONS),
    )


CAUSAL = masking_utils.causal_mask_function
SLIDING = masking_utils.sliding_window_causal_mask_function(3)
BLOCKS = masking_utils.blockwise_overlay(IMAGES)
CHUNKS = masking_utils.chunked_causal_mask_function(4, torch.zeros(2, dtype=torch.long))
KNOWN = {
    "causal": CAUSAL,
    "sliding": SLIDING,
    "bidirectional": masking_utils.bidirectional_mask_function,
    "sliding bidirectional": masking_utils.sliding_window_bidirectional_mask_function(2),
    "packed": packed(CAUSAL),
    "packed sliding": packed(SLIDING),
    "packed first": packed_first(CAUSAL),
    "packed first sliding": packed_first(SLIDING),
    "images": masking_utils.or_masks(CAUSAL, BLOCKS),
    "sliding or images": masking_utils.or_masks(SLIDING, BLOCKS),
    "sliding and images": masking_utils.and_masks(
        masking_utils.or_masks(CAUSAL, BLOCKS), masking_utils.sliding_window_overlay(3)
    ),
    "packed or images": masking_utils.or_masks(packed(SLIDING), BLOCKS),
    "images in documents": packed(SLIDING, beside=[BLOCKS]),
    "chunks": CHUNKS,
    "chunks behind padding": masking_utils.chunked_causal_mask_function(3, torch.tensor([2, 0])),
    "packed chunks": packed(CHUNKS),
    "chunks or images": masking_utils.or_masks(CHUNKS, BLOCKS),
}


def dense(visible, rows):
    """bool [B, 1, rows, columns] of what flashmask_mask() returns, from its definition."""
    row = torch.arange(rows)[:, None]
    return ((visible[..., 1][:, None] <= row) & (row < visible[..., 0][:, None]))[:, None]


def evaluated(**arguments):
    """Transformers' own evaluation of every pair."""
    return masking_utils.sdpa_mask(**arguments, allow_is_causal_skip=False, use_vmap=False)


@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize("function", KNOWN.values(), ids=KNOWN)
def test_mask_functions_say_what_their_evaluation_says(function, padded):
    arguments = {"batch_size": 2, "q_length": 9, "kv_length": 9, "mask_function": function}
    if padded:
        arguments["attention_mask"] = torch.tensor([[0, 0] + [1] * 7, [1] * 4 + [0] + [1] * 2 + [0] * 2]).bool()
    found = flashmask_mask(**arguments)
    assert found.dtype is torch.int32 and found.shape[1:] == (9, 2)
    assert torch.equal(dense(found, 9).expand(2, 1, 9, 9), evaluated(**arguments))


@pytest.mark.parametrize("offsets", [(0, 0), (4, 0), (6, 3), (torch.tensor(4), 0)], ids=str)
@pytest.mark.parametrize("name", ["causal", "sliding", "chunks", "images", "sliding and images"])
def test_queries_and_keys_begin_where_a_cache_says(name, offsets):
    function = KNOWN[name] if "images" not in name else None
    if name == "chunks":
        function = masking_utils.chunked_causal_mask_function(4, torch.tensor([1]))
    long = masking_utils.blockwise_overlay(torch.tensor([[-1, 0, 0, 0, 0, 0, -1, 1, 1, 1, 1, -1, -1, -1]]))
    if function is None:
        function = masking_utils.or_masks(CAUSAL, long)
    if "sliding and" in name:
        function = masking_utils.and_masks(function, masking_utils.sliding_window_overlay(3))
    q_offset, kv_offset = offsets
    arguments = {"batch_size": 1, "q_length": 5, "kv_length": 9, "q_offset": q_offset, "kv_offset": kv_offset}
    arguments |= {"mask_function": function, "attention_mask": torch.tensor([[0] + [1] * 8]).bool()}
    assert torch.equal(dense(flashmask_mask(**arguments), 5), evaluated(**arguments))


@pytest.mark.parametrize("name", [each for each in KNOWN if "images" not in each and "chunks" not in each])
def test_what_a_compiler_can_trace_says_the_same(name):
    window = 2 if name == "sliding bidirectional" else 3 if "sliding" in name else None
    rows = recognise_traced(KNOWN[name], Keys(9, 0, "cpu"), batch=2, window=window, both_ways="bidirectional" in name)
    found = dense(rows.packed(9), 9).expand(2, 1, 9, 9)
    assert torch.equal(found, evaluated(batch_size=2, q_length=9, kv_length=9, mask_function=KNOWN[name]))


def test_images_in_documents_are_refused_where_a_compiler_cannot_see_them():
    with pytest.raises(RuntimeError, match=r"without torch.compile, or without packing"):
        recognise_traced(KNOWN["images in documents"], Keys(9, 0, "cpu"), batch=2, window=3, both_ways=False)


def test_chunks_are_no_windows_for_a_compiler():
    arguments = {"batch_size": 2, "q_length": 9, "kv_length": 9, "mask_function": CHUNKS}
    config = SimpleNamespace(attention_chunk_size=4)

    def made(length):
        return flashmask_mask(**arguments | {"q_length": length}, local_size=4, config=config)

    found = torch.compile(made, backend="eager")(9)
    assert torch.equal(dense(found, 9).expand(2, 1, 9, 9), evaluated(**arguments))


def test_chunks_begin_with_their_documents_where_transformers_counts_them_through():
    earlier = masking_utils.and_masks(CHUNKS, masking_utils.packed_sequence_mask_function(PACKED))
    arguments = {"batch_size": 2, "q_length": 9, "kv_length": 9}
    found = dense(flashmask_mask(**arguments, mask_function=earlier), 9)
    assert torch.equal(found, evaluated(**arguments, mask_function=packed(CHUNKS)))
    assert not torch.equal(found, evaluated(**arguments, mask_function=earlier))


def unknown(batch_idx, head_idx, q_idx, kv_idx):
    return (kv_idx <= q_idx) & (kv_idx % 3 != 1)


UNKNOWN = {
    "own": unknown,
    "own beside known": masking_utils.and_masks(CAUSAL, unknown),
    "union of two windows": masking_utils.or_masks(CAUSAL, masking_utils.sliding_window_overlay(2)),
    "an image in pieces": masking_utils.or_masks(
        CAUSAL, masking_utils.blockwise_overlay(torch.tensor([[0, 0, -1, 0, 0, -1, -1, -1, -1]] * 2))
    ),
    "union of three": masking_utils.or_masks(CAUSAL, BLOCKS, masking_utils.sliding_window_overlay(2)),
    "positions without documents": masking_utils.and_masks(
        CAUSAL, masking_utils.remap_positions_for_packed_sequence(CAUSAL, POSITIONS)
    ),
    "images by positions": packed(masking_utils.or_masks(CAUSAL, BLOCKS)),
}


PADDING = torch.tensor([[0, 0] + [1] * 7, [1] * 4 + [0] + [1] * 2 + [0] * 2]).bool()


def shown(ranges, rows):
    """bool [B, 1, rows, keys] of int32 [B, 1, keys, 2, 2], two ranges of masked rows."""
    begin, end = (each[..., None] for each in ranges.unbind(-1))
    row = torch.arange(rows)
    return ~((begin <= row) & (row < end)).any(3).transpose(2, 3)


@pytest.mark.parametrize("padding", [None, PADDING], ids=["whole", "padded"])
@pytest.mark.parametrize("name", [name for name in UNKNOWN if name != "positions without documents"])
def test_unknown_mask_functions_become_ranges(name, padding):
    arguments = {"batch_size": 2, "q_length": 9, "kv_length": 9, "mask_function": UNKNOWN[name]}
    found = flashmask_mask(**arguments, attention_mask=padding)
    assert found.dtype is torch.int32 and found.shape[1:] == (1, 9, 2, 2)
    assert torch.equal(
        shown(found, 9).expand(2, 1, 9, 9), evaluated(**arguments, attention_mask=padding).expand(2, 1, 9, 9)
    )
    assert flashmask_mask(batch_size=2, q_length=9, kv_length=9, attention_mask=found) is found  # as generate() does


@pytest.mark.parametrize("offsets", [(4, 0), (6, 3), (torch.tensor(4), 0)], ids=str)
@pytest.mark.parametrize("name", ["own", "own beside known", "union of two windows"])
def test_unknown_mask_functions_behind_a_cache(name, offsets):
    q_offset, kv_offset = offsets
    arguments = {"batch_size": 1, "q_length": 5, "kv_length": 9, "q_offset": q_offset, "kv_offset": kv_offset}
    arguments |= {"mask_function": UNKNOWN[name], "attention_mask": torch.tensor([[0] + [1] * 8]).bool()}
    assert torch.equal(shown(flashmask_mask(**arguments), 5), evaluated(**arguments))


def test_unknown_mask_functions_with_many_ranges_are_held_in_booleans_openly():
    _once._warned.clear()
    arguments = {"batch_size": 2, "q_length": 9, "kv_length": 9}
    arguments["mask_function"] = UNKNOWN["positions without documents"]
    with pytest.warns(
        UserWarning, match="masks more than two ranges of queries for some key; .* in booleans for every"
    ):
        found = flashmask_mask(**arguments)
    assert found.dtype is torch.bool and torch.equal(found, evaluated(**arguments))


def test_masks_of_functions_are_whole():
    """A layer's window is part of the function already; row indices would be a second mask."""
    made = flashmask_mask(batch_size=1, q_length=6, kv_length=6, mask_function=unknown)
    expected = evaluated(batch_size=1, q_length=6, kv_length=6, mask_function=unknown)[0]
    asked = call(attention_mask=made, window=2)
    assert torch.equal(attended(attention_mask=made, window=2), expected)
    assert layer_mask(asked) is layer_mask(asked)
    rows = torch.full((1, 1, 6, 1), 6, dtype=torch.int32)
    with pytest.raises(ValueError, match=r"a mask function .* and startend_row_indices \[1, 1, 6, 1\] came together"):
        layer_mask(call(attention_mask=made, row_indices=rows))


def test_making_masks_reads_nothing_back_from_the_device():
    # Tensors on the meta device have no values: whatever waits for one raises.
    meta = {"device": "meta"}
    real = torch.ones(2, 9, dtype=torch.bool, **meta)
    on_meta = packed(SLIDING, positions=POSITIONS.to("meta"), documents=PACKED.to("meta"))
    made = flashmask_mask(
        batch_size=2, q_length=9, kv_length=9, mask_function=on_meta, attention_mask=real, device="meta"
    )
    bounds = torch.zeros(4, dtype=torch.int32, **meta)
    for said in ({"position_ids": POSITIONS.to("meta")}, {"cu_seq_lens_q": bounds, "cu_seq_lens_k": bounds.clone()}):
        batch = 1 if "cu_seq_lens_q" in said else 2
        mask = layer_mask(call(attention_mask=made[:batch], batch=batch, rows=9, columns=9, **said))
        assert mask.vectors.shape == (batch, 1, 9, 2)


def call(**changes):
    plain = {"batch": 1, "rows": 6, "columns": 6, "device": torch.device("cpu"), "causal": True, "window": None}
    said = ("attention_mask", "row_indices", "position_ids", "cu_seq_lens_q", "cu_seq_lens_k")
    return Call(**{**plain, **dict.fromkeys(said), **changes})


def attended(**changes):
    """bool [batch * heads, rows, columns] under which a layer attends."""
    asked = call(**changes)
    mask = layer_mask(asked)
    mask = flashmask.RowIndices(*mask, asked.rows) if isinstance(mask, Indices) else mask
    return torch.as_tensor(mask.to_dense()).reshape(-1, asked.rows, asked.columns)


def test_layers_without_a_mask_are_causal_or_full_as_they_say():
    causal = torch.ones(6, 6, dtype=torch.bool).tril()
    assert torch.equal(attended()[0], causal)
    assert torch.equal(attended(causal=False)[0], torch.ones_like(causal))
    assert torch.equal(attended(window=3)[0], causal.triu(-2))
    assert torch.equal(attended(rows=1)[0], torch.ones(1, 6, dtype=torch.bool))


def test_windows_beside_row_indices_are_aligned_bottom_right():
    ends = torch.tensor([1, 3, 2, 3, 3, 3], dtype=torch.int32)[None, None, :, None]
    row, column = torch.arange(3)[:, None], torch.arange(6)
    allowed = (row < ends.flatten()) & (column <= row + 3) & (column > row + 3 - 4)
    assert torch.equal(attended(rows=3, window=4, row_indices=ends)[0], allowed)


ANSWERS = {  # one question of 3 tokens, two answers of 4 and 2
    "row_indices": torch.tensor([9] * 3 + [7] * 4 + [9] * 2, dtype=torch.int32)[None, None, :, None],
    "position_ids": torch.tensor([[0, 1, 2, 3, 4, 5, 6, 3, 4]]),
}


def test_windows_count_positions_so_that_other_answers_do_not_matter():
    part = torch.tensor([0] * 3 + [1] * 4 + [2] * 2)
    sees = ((part[:, None] == part) | (part == 0)).tril()
    asked = call(rows=9, columns=9, window=7, **ANSWERS)  # rows reach further than 7 keys, positions do not
    assert isinstance(layer_mask(asked), Indices)
    assert torch.equal(attended(rows=9, columns=9, window=7, **ANSWERS)[0], sees)
    _once._warned.clear()
    places = ANSWERS["position_ids"][0]
    for window in (2, 4, 6):
        with pytest.warns(UserWarning, match="booleans for every pair") if window == 2 else nullcontext():
            mask = layer_mask(call(rows=9, columns=9, window=window, **ANSWERS))
        found = torch.as_tensor(mask.to_dense()).reshape(9, 9)
        assert torch.equal(found, sees & (places[:, None] - places < window))


@pytest.mark.parametrize("positions", [None, torch.arange(9)[None]], ids=["none", "rising"])
def test_windows_beside_several_ranges_hide_what_lies_before_them(positions):
    row, column = torch.arange(9)[:, None], torch.arange(9)
    first, end = torch.tensor([5] * 9), torch.tensor([6] * 9)  # row 5 sees nothing
    span = torch.where((column > 2) & (column < 6), 3, column)  # rows 3 to 5 see each other, row 5 excepted
    vectors = torch.stack([first, end, torch.zeros(9, dtype=torch.long), span], -1).to(torch.int32)[None, None]
    found = attended(rows=9, columns=9, window=4, row_indices=vectors, position_ids=positions)[0]
    assert torch.equal(found, (row != 5) & (row >= span) & (column > row - 4))


def test_windows_within_documents_stay_two_numbers_a_key():
    ends = torch.tensor([4] * 4 + [99] * 5, dtype=torch.int32)[None, None, :, None]
    positions = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4]])
    row = torch.arange(9)
    expected = (row[:, None] < ends.flatten()) & (row <= row[:, None]) & (row[:, None] - row < 3)
    found = attended(rows=9, columns=9, window=3, row_indices=ends, position_ids=positions)
    assert torch.equal(found[0], expected)


def test_masks_that_are_written_to_are_read_again():
    visible = torch.ones(1, 1, 6, 6, dtype=torch.bool)
    asked = call(attention_mask=visible)
    assert layer_mask(asked) is layer_mask(asked)
    visible.tril_()
    assert torch.equal(torch.as_tensor(layer_mask(asked).to_dense()).reshape(6, 6), visible[0, 0])


def test_vision_layers_attend_within_cu_seq_lens():
    bounds = torch.tensor([0, 2, 5])
    part = torch.tensor([0, 0, 1, 1, 1, 2])  # the last key is in no document
    expected = (part[:, None] == part) & (part < 2)
    assert torch.equal(attended(causal=False, cu_seq_lens_q=bounds)[0], expected)
    assert torch.equal(attended(cu_seq_lens_q=bounds, cu_seq_lens_k=bounds.clone())[0], expected.tril())


def test_two_dimensional_masks_are_padding():
    real = torch.tensor([[0, 1, 1, 1, 0, 1]])
    assert torch.equal(attended(attention_mask=real)[0], torch.ones(6, 6).tril().bool() & real.bool())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rows": 3}, "3 queries and 6 keys in a causal layer without a mask"),
        ({"causal": False, "window": 2}, "sliding_window=2 in a layer that is neither causal nor has a mask"),
        ({"attention_mask": torch.ones(1, 5)}, r"attention_mask has shape \[1, 5\]; expected \[1, 6\]"),
        ({"attention_mask": torch.zeros(1, 1, 6, 6)}, "numbers to add to the scores"),
        ({"attention_mask": torch.zeros(1, 5, 2, dtype=torch.int32)}, "mask is for 5 keys, the layer has 6"),
        (
            {"attention_mask": torch.zeros(1, 1, 5, 1, dtype=torch.int32)},
            r"shape \[1, 1, 5, 1\]; expected \[1 or 1, heads, 6, n\]",
        ),
        (
            {
                "attention_mask": torch.ones(1, 1, 6, 6).bool(),
                "row_indices": torch.zeros(1, 1, 6, 1, dtype=torch.int32),
            },
            "hand over one of them",
        ),
        (
            {"row_indices": torch.zeros(1, 1, 6, 2, dtype=torch.int32), "causal": False, "window": 2},
            "put it into the row indices",
        ),
        ({"position_ids": torch.arange(6)}, r"position_ids has shape \[6\]; expected \[1 or 1, 6\]: pass position_ids"),
        ({"cu_seq_lens_q": torch.tensor([0, 6]), "batch": 2}, "cu_seq_lens_q with a batch of 2"),
        (
            {"cu_seq_lens_q": torch.tensor([0, 6]), "cu_seq_lens_k": torch.tensor([0, 5, 6])},
            r"expected both \[documents \+ 1\]",
        ),
        ({"cu_seq_lens_q": torch.tensor([0, 6]), "cu_seq_lens_k": torch.tensor([0, 5])}, "varlen_attention"),
    ],
)
def test_refuses_what_would_be_a_guess(changes, message):
    with pytest.raises(ValueError, match=message):
        layer_mask(call(**changes))


def test_row_indices_are_int32():
    with pytest.raises(TypeError, match=r"startend_row_indices has dtype torch.int64; expected torch.int32"):
        layer_mask(call(row_indices=torch.zeros(1, 1, 6, 1, dtype=torch.int64)))


def attend(module=None, mask=None, **options):
    q, k = torch.zeros(1, 4, 6, 8), torch.zeros(1, 2, 6, 8)
    module = module or SimpleNamespace(config=SimpleNamespace(_attn_implementation="flashmask"), training=False)
    return flashmask_attention_forward(module, q, k, k, mask, **options)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("head_mask", torch.ones(4)),
        ("cache", object()),
        ("output_attentions", True),
        ("weights_of_tokens", torch.ones(1, 6)),  # a tensor that nobody knows
        ("block_indices", torch.zeros(1, 2, 6, 1, dtype=torch.long)),  # without a size of blocks
    ],
)
def test_refuses_what_it_would_leave_out(option, value):
    with pytest.raises(ValueError, match=option):
        attend(**{option: value})


def test_a_float32_model_on_a_gpu_is_told_the_ways_out():
    layer = torch.nn.Linear(2, 2)
    said = r"Linear computes in float32 on cuda:1; .*dtype=torch\.bfloat16, .*torch\.autocast, or run it on the CPU"
    for dtype, is_cuda in ((torch.bfloat16, True), (torch.float32, False)):
        refuse_float32(layer, SimpleNamespace(is_cuda=is_cuda, dtype=dtype, device="cuda:1"))
    with pytest.raises(NotImplementedError, match=said):
        refuse_float32(layer, SimpleNamespace(is_cuda=True, dtype=torch.float32, device="cuda:1"))


TINY = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "vocab_size": 9,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}


def tiny(name):
    return transformers.AutoModelForCausalLM.from_config(transformers.LlamaConfig(**TINY), attn_implementation=name)


def test_a_name_that_nobody_registered_fails(monkeypatch):
    monkeypatch.delitem(AttentionInterface._global_mapping, "flashmask")
    with pytest.raises(ValueError, match="flashmask"):
        tiny("flashmask")


def test_a_name_in_the_attention_registry_only_fails_before_a_mask_is_lost(monkeypatch):
    mapping = dict(AttentionInterface._global_mapping)
    monkeypatch.setattr(AttentionInterface, "_global_mapping", mapping)
    AttentionInterface.register("halfway", flashmask_attention_forward)
    made = tiny("halfway")
    for mask in (None, torch.tensor([[0, 0, 1, 1]])):
        with pytest.raises(ValueError, match=r"in the mask registry it is nothing.*register\('halfway'\)"):
            made(torch.ones(1, 4, dtype=torch.long), attention_mask=mask)


@pytest.mark.parametrize("other", ["flash_attention_2", "sdpa"])
def test_another_mask_function_under_the_name_fails(monkeypatch, other):
    monkeypatch.setattr(AttentionInterface, "_global_mapping", dict(AttentionInterface._global_mapping))
    monkeypatch.setattr(AttentionMaskInterface, "_global_mapping", dict(AttentionMaskInterface._global_mapping))
    AttentionInterface.register("halfway", flashmask_attention_forward)
    AttentionMaskInterface.register("halfway", masking_utils.ALL_MASK_ATTENTION_FUNCTIONS[other])
    with pytest.raises(ValueError, match="which does not make flashmask's masks"):
        tiny("halfway")(torch.ones(1, 4, dtype=torch.long))


def test_registers_other_names_and_any_number_of_times(monkeypatch):
    monkeypatch.setattr(AttentionInterface, "_global_mapping", dict(AttentionInterface._global_mapping))
    monkeypatch.setattr(AttentionMaskInterface, "_global_mapping", dict(AttentionMaskInterface._global_mapping))
    for _ in range(2):
        register("my_flash")
    ids = torch.ones(1, 4, dtype=torch.long)
    assert tiny("my_flash")(ids).logits.shape == (1, 4, 9)


def test_refuses_versions_that_describe_masks_in_another_way(monkeypatch):
    # Not the module imported here: loading its lazy parts, such as the Trainer, leaves another one under the name.
    monkeypatch.setattr(_register.transformers, "__version__", "5.4.0")
    with pytest.raises(ImportError, match=r"Transformers 5.4.0 is installed; .* needs 5.5 or newer"):
        register()


@pytest.mark.parametrize("name", ["sdpa", "eager", "flash_attention_2", "", "org/repo", "paged|flashmask"])
def test_refuses_names_that_mean_something_else(name):
    found = ALL_ATTENTION_FUNCTIONS.get(name)
    with pytest.raises(ValueError, match="name"):
        register(name)
    assert ALL_ATTENTION_FUNCTIONS.get(name) is found


def test_other_implementations_stay_as_they_were():
    made = tiny("sdpa")
    ids = torch.tensor([[1, 2, 3, 4]])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        expected = made(ids).logits
    made.set_attn_implementation("flashmask")
    assert torch.allclose(made(ids).logits, expected, atol=1e-6)
    with pytest.raises((ImportError, ValueError)):
        made.set_attn_implementation("flash_attention_2")


def test_layers_follow_what_they_are_called_with():
    torch.manual_seed(0)
    q, k, v = torch.randn(1, 4, 6, 8), torch.randn(1, 2, 6, 8), torch.randn(1, 2, 6, 8)
    module = SimpleNamespace(config=SimpleNamespace(_attn_implementation="flashmask"), training=False, is_causal=True)
    for causal in (True, False):
        found, weights = flashmask_attention_forward(module, q, k, v, None, is_causal=causal, dropout=0.9, scaling=0.3)
        expected = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=causal, scale=0.3, enable_gqa=True
        )
        assert weights is None and found.shape == (1, 6, 4, 8)
        assert torch.allclose(found, expected.transpose(1, 2), atol=1e-6)


def test_dense_masks_drop_what_attention_drops():
    module = SimpleNamespace(config=SimpleNamespace(_attn_implementation="flashmask"), training=True)
    q, visible = torch.randn(1, 2, 6, 8), torch.ones(1, 1, 6, 6, dtype=torch.bool).tril()
    torch.manual_seed(3)
    found, _ = flashmask_attention_forward(module, q, q, q, visible, dropout=0.5)
    torch.manual_seed(3)
    q = q.transpose(1, 2)
    assert torch.equal(found, flashmask.attention(q, q, q, visible, dropout=0.5))
    assert not torch.allclose(found, flashmask.attention(q, q, q, visible))


def test_the_package_exports_what_it_documents():
    functions = {"flashmask_attention_forward", "flashmask_mask", "register", "shard"}
    assert set(flashmask.transformers.__all__) == functions | {"ShardedBatches"}
