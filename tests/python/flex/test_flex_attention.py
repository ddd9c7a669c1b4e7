# SPDX-License-Identifier: Apache-2.0
"""flex_attention(): FlexAttention's semantics, against the dense formula in double precision and against itself."""

import functools
import gc
import warnings
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="flex_attention takes tensors")

import torch.nn.attention.flex_attention as flex  # noqa: E402
from flex_oracle import flex_formula, flex_scores, indices, tensors  # noqa: E402
from score_mods import CASES, SERVED, N  # noqa: E402

import flashmask  # noqa: E402
from flashmask import flex_attention, masks  # noqa: E402
from flashmask._flex import captured as kept  # noqa: E402
from flashmask._flex import with_functions  # noqa: E402
from flashmask.masks import _block_mask  # noqa: E402

RATE = 1.0
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def causal(b, h, i, j):
    return i >= j


def since(name):
    """Marks a test of what FlexAttention has in newer versions of PyTorch."""
    return pytest.mark.skipif(not hasattr(flex, name), reason=f"this PyTorch's FlexAttention has no {name}")


def block_mask(mask_mod, rows=N, columns=N, batch=None, heads=None, **options):
    return flex.create_block_mask(mask_mod, batch, heads, rows, columns, device="cpu", **options)


def documents(ids):
    return lambda b, h, i, j: (ids[b, i] == ids[b, j]) & (i >= j)


def check(qkv, score_mod=None, mask=None, visible=None, **call):
    """Compares o, lse and the gradients of q, k and v with the formula's."""
    scale = call.get("scale")
    o, lse = flex_attention(*qkv, score_mod, mask, return_lse=True, enable_gqa=True, **call)
    doubles = [each.detach().double().requires_grad_() for each in qkv]
    expected = flex_formula(*doubles, score_mod, visible, scale)
    torch.testing.assert_close(o.double(), expected[0], **CLOSE)
    torch.testing.assert_close(lse.double(), expected[1], **CLOSE)
    grad = torch.randn_like(o)
    found = torch.autograd.grad((o * grad).sum() + lse.where(lse > -torch.inf, 0.0).sum(), qkv)
    o, lse = expected
    wanted = torch.autograd.grad((o * grad).sum() + lse.where(lse > -torch.inf, 0.0).sum(), doubles)
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=1e-4)
    return o, lse


def test_scale_comes_first_then_score_mod_then_mask_mod():
    def change(s, b, h, i, j):
        return 2.0 * torch.tanh(s / 2.0) + torch.where(i >= j, 0.5, 100.0)

    visible = causal(*indices(1, 1, N, N))
    for scale in (None, 1, -0.7, 0.0):
        check(tensors(), change, block_mask(causal), visible, scale=scale)
        check(tensors(), None, block_mask(causal), visible, scale=scale)


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (23, 130), (130, 23), (127, 129), (128, 128)])
def test_indices_count_from_0_and_nothing_is_padded(rows, columns):
    visible = causal(*indices(1, 1, rows, columns))
    check(tensors(rows=rows, columns=columns), None, block_mask(causal, rows, columns), visible)
    check(tensors(rows=rows, columns=columns, value_dim=8))


def test_a_row_that_sees_nothing_gets_zero_and_passes_no_gradient():
    def nothing_for_some(b, h, i, j):
        return (i % 5 != 0) & (i >= j)

    qkv = tensors()
    o, lse = check(qkv, None, block_mask(nothing_for_some), nothing_for_some(*indices(1, 1, N, N)))
    assert not o[:, :, ::5].any() and (lse[:, :, ::5] == -torch.inf).all()
    grad = torch.autograd.grad(flex_attention(*qkv, None, block_mask(nothing_for_some)).sum(), qkv[0])[0]
    assert not grad[:, :, ::5].any() and grad[:, :, 1:5].any()


def test_what_score_mod_hides_becomes_a_mask(monkeypatch):
    given = []
    monkeypatch.setattr(with_functions, "attention", lambda *a, **o: given.append(a[3]) or flashmask.attention(*a, **o))
    qkv, window = tensors(), masks.window(N, N, 6, None)
    flex_attention(*qkv, lambda s, b, h, i, j: torch.where(i >= j, s, -torch.inf))
    flex_attention(*qkv, lambda s, b, h, i, j: torch.where(i >= j, s, -torch.inf), window)
    flex_attention(*qkv, lambda s, b, h, i, j: torch.where(i - j < 7, s, -torch.inf), block_mask(causal))
    assert given[0] == masks.causal(N, N)
    assert given[1] == given[2] == masks.causal(N, N) & window


def test_what_a_matrix_hides_is_evaluated_for_some_rows_at_a_time(monkeypatch):
    monkeypatch.setattr("flashmask._flex.evaluation._PAIRS_AT_ONCE", N * 3)
    seen = torch.rand(2, N, N) < 0.5
    check(tensors(), lambda s, b, h, i, j: torch.where(seen[b, i, j] & (h > 0), s, -torch.inf))


def test_levels_that_learn_may_decide_what_is_hidden():
    level = torch.randn(N, requires_grad=True)
    check(tensors(), lambda s, b, h, i, j: torch.where(level[i] >= level[j], s, -torch.inf))
    check(tensors(), lambda s, b, h, i, j: torch.where(level[i] * level[j] > 0, s, -torch.inf))


@pytest.mark.parametrize("block", [16, (32, 16)])
def test_absent_blocks_hide_full_ones_show_and_partial_ones_ask_mask_mod(block):
    whole = block_mask(causal, 64, 64, BLOCK_SIZE=16)
    blocks = torch.tensor([[1, 0, 0, 0], [2, 1, 0, 0], [0, 2, 1, 0], [2, 2, 2, 1]])  # 1: partial, 2: full
    blocks[0, 3] = 2  # shows what mask_mod does not
    if block != 16:
        blocks = blocks[::2]

    def listed(kind):
        counts = (blocks == kind).sum(1).int()[None, None]
        return counts, (blocks == kind).int().argsort(dim=1, descending=True, stable=True).int()[None, None]

    lists = flex.BlockMask.from_kv_blocks(
        *listed(1), *listed(2), BLOCK_SIZE=block, mask_mod=causal, seq_lengths=(64, 64)
    )
    wide = blocks.repeat_interleave(64 // len(blocks), 0).repeat_interleave(16, 1)
    visible = (wide == 2) | (wide == 1) & causal(*indices(1, 1, 64, 64))
    check(tensors(rows=64, columns=64), None, lists, visible)
    check(tensors(rows=64, columns=64), None, whole, causal(*indices(1, 1, 64, 64)))


@pytest.mark.parametrize("empty", [{"batch": 0}, {"rows": 0}, {"columns": 0}], ids=str)
def test_empty_calls(empty):
    qkv = tensors(**empty)
    for change in (SERVED["causal"].make({}), SERVED["ALiBi, signed"].make({}), None):
        o, lse = flex_attention(*qkv, change, return_lse=True)
        assert o.shape == qkv[0].shape and not o.any() and (lse == -torch.inf).all()
        assert not any(each.any() for each in torch.autograd.grad(o.sum(), qkv))


def test_no_block_mask_and_one_of_any_size_show_all_pairs():
    qkv = tensors()
    check(qkv)
    check(qkv, None, flex._create_empty_block_mask(*qkv[:2]))


@pytest.mark.parametrize("batch", [None, 2])
@pytest.mark.parametrize("heads", [None, 4])
def test_masks_of_batch_entries_and_query_heads(batch, heads):
    ids = torch.randint(0, 4, (2, N)).sort().values

    def mask_mod(b, h, i, j):
        seen = i >= j
        seen = seen & (ids[b, i] == ids[b, j]) if batch else seen
        return seen & (i - j < 5 * h + 4) if heads else seen

    visible = mask_mod(*indices(2, 4, N, N))
    check(tensors(key_heads=2), None, block_mask(mask_mod, batch=batch, heads=heads), visible)


def test_block_mask_takes_what_attention_takes_for_a_mask():
    qkv, expected = tensors(), masks.causal(N, N)
    rows = masks.from_cu_seqlens(torch.tensor([0, N], dtype=torch.int32), N, causal=True)
    o = flex_attention(*qkv, None, expected)
    visible = expected.to_dense().astype(bool)
    for mask in (rows, torch.from_numpy(visible), visible, visible.tolist()):
        assert torch.equal(flex_attention(*qkv, None, mask), o)
        assert torch.equal(flex_attention(*qkv, lambda s, b, h, i, j: s, mask), o)
        assert torch.equal(
            flex_attention(*qkv, lambda s, b, h, i, j: torch.where(i < 9, s, -torch.inf), mask)[:, :, :9], o[:, :, :9]
        )


def test_lse_is_natural_and_differentiable():
    qkv = tensors(dtype=torch.float64)
    o, lse = flex_attention(*qkv, return_lse=True)
    assert o.dtype is lse.dtype is torch.float64 and lse.shape == (2, 4, N)
    bfloat16 = flex_attention(*(each.bfloat16() for each in qkv), return_lse=True)
    assert (bfloat16[0].dtype, bfloat16[1].dtype) == (torch.bfloat16, torch.float32)
    torch.testing.assert_close(lse, flex_formula(*qkv)[1])
    torch.autograd.gradcheck(
        lambda *qkv: flex_attention(
            *qkv, lambda s, b, h, i, j: 3 * torch.tanh(s / 3), block_mask(causal, 5, 5), return_lse=True
        ),
        tensors(1, 1, 1, 5, 5, 4, dtype=torch.float64),
    )


def test_o_is_a_view_of_tokens_by_heads():
    o, lse = flex_attention(*tensors(), return_lse=True)
    assert o.shape == (2, 4, N, 16) and o.transpose(1, 2).is_contiguous() and lse.shape == (2, 4, N)


def test_indices_are_int64_and_scores_float32():
    seen = []

    def change(s, *of):
        seen.extend([s.dtype, *(each.dtype for each in of)])
        return s + of[3]

    flex_attention(*(each.bfloat16() for each in tensors()), change)
    assert seen == [torch.float32] + [torch.int64] * 4


def test_lse_and_functions_come_without_a_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        flex_attention(*tensors(), lambda s, b, h, i, j: s * 2, block_mask(causal), return_lse=True)


@since("AuxRequest")
def test_return_aux():
    qkv = tensors()
    o = flex_attention(*qkv)
    request, output = flex.AuxRequest, flex.AuxOutput
    assert flex_attention(*qkv, return_aux=request())[1] == output(None, None)
    held, aux = flex_attention(*qkv, return_aux=request(lse=True))
    assert isinstance(aux, output) and aux.max_scores is None and torch.equal(held, o)
    assert torch.equal(aux.lse, flex_attention(*qkv, return_lse=True)[1])


@since("AuxRequest")
@pytest.mark.parametrize("name", SERVED)
def test_max_scores_are_those_behind_score_mod(name):
    case, qkv = CASES[name], tensors()
    change = case.make(case.captured())
    visible = causal(*indices(1, 1, N, N))
    request = flex.AuxRequest(lse=True, max_scores=True)
    for mask, seen in ((None, None), (masks.causal(N, N), visible)):
        o, aux = flex_attention(*qkv, change, mask, return_aux=request)
        wanted = flex_scores(*qkv[:2], change, seen).amax(-1)
        torch.testing.assert_close(aux.max_scores.double(), wanted, **CLOSE)
        assert aux.max_scores.dtype is torch.float32 and not aux.max_scores.requires_grad
        again, lse = flex_attention(*qkv, change, mask, return_lse=True)
        assert torch.equal(again, o) and torch.equal(lse, aux.lse)


@since("AuxRequest")
def test_max_scores_of_rows_that_see_nothing():
    def hides_some_rows(s, b, h, i, j):
        return s + torch.where(i % 3 == 0, -torch.inf, 1.0)

    for change, mask in ((hides_some_rows, None), (None, block_mask(lambda b, h, i, j: (i % 3 != 0) & (i >= j)))):
        _, aux = flex_attention(*tensors(), change, mask, return_aux=flex.AuxRequest(max_scores=True))
        assert torch.equal(aux.max_scores == -torch.inf, (torch.arange(N) % 3 == 0).expand(2, 4, N))
        assert aux.lse is None


def test_keys_of_one_sequence_serve_a_batch_beside_a_mask():
    q, (_, k, v) = tensors(batch=3)[0], tensors(batch=1)
    visible = causal(*indices(1, 1, N, N))
    for mask in (block_mask(causal, batch=3), masks.causal(N, N)):
        o = flex_attention(q, k, v, None, mask)
        torch.testing.assert_close(o.double(), flex_formula(q, k, v, None, visible)[0], **CLOSE)
    with pytest.raises(ValueError, match="or non-none block_mask, but got block_mask=None, Bq=3, and Bkv=1"):
        flex_attention(q, k, v)
    with pytest.raises(ValueError, match="but got Bq=3, Bkv=1, B_block_mask=1"):
        flex_attention(q, k, v, None, block_mask(causal))


@since("FlexKernelOptions")
def test_kernel_options_change_nothing():
    qkv = tensors()
    options = dict.fromkeys(flex.FlexKernelOptions.__annotations__, 1) | {"fwd_num_warps": 4, "bwd_BLOCK_M1": 32}
    assert torch.equal(flex_attention(*qkv, kernel_options=options), flex_attention(*qkv))


def test_keys_in_pages():
    """PyTorch's PagedAttention rewrites block masks and score_mods for keys that lie in the pages of one cache."""
    paged = pytest.importorskip("torch.nn.attention.experimental._paged_attention")
    q, k, v = (each.detach() for each in tensors(key_heads=2))
    size, pages = 8, 20
    cache = paged.PagedAttention(pages, size, 2, device="cpu")
    for entry in (0, 1):
        cache.reserve(torch.tensor(entry), torch.tensor(N))
    held = [torch.zeros(1, 2, pages * size, 16) for _ in range(2)]
    cache.assign(torch.arange(2), torch.arange(N).expand(2, -1), k, v, *held)
    blocks = cache.convert_logical_block_mask(block_mask(causal, batch=2, heads=1, BLOCK_SIZE=size))

    def change(s, b, h, i, j):
        return s - 0.1 * (i - j)

    o = flex_attention(q, *held, cache.get_score_mod(change), blocks, enable_gqa=True)
    torch.testing.assert_close(o.double(), flex_formula(q, k, v, change, causal(*indices(1, 1, N, N)))[0], **CLOSE)


class Slopes(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.rate = torch.nn.Parameter(torch.tensor([0.1, 0.2, 0.3, 0.4]))

    def forward(self, score, b, h, q_idx, kv_idx):
        return self.scaled(0.5, score, b, h, q_idx, kv_idx=kv_idx)

    def scaled(self, by, score, b, h, q_idx, kv_idx):
        return score * by - self.rate[h] * (q_idx - kv_idx)


def test_score_mods_may_be_modules_methods_and_partial_functions():
    change, qkv = Slopes(), tensors()
    results = []
    for each in (change, change.forward, functools.partial(change.scaled, 0.5)):
        results.append(flex_attention(*qkv, each))
        results.append(torch.autograd.grad(results[-1].sum(), change.rate)[0])
    assert all(torch.equal(a, b) for a, b in zip(results[2:], results[:-2], strict=True))
    assert results[1].any()


def test_inference_mode_and_autocast():
    qkv, ids = tensors(), torch.arange(N)[None] // 9
    change, mask = SERVED["T5"].make(SERVED["T5"].captured()), block_mask(documents(ids))
    o = flex_attention(*qkv, change, mask)
    with torch.inference_mode():
        assert torch.equal(flex_attention(*qkv, change, block_mask(documents(ids.clone()))), o)
    with torch.autocast("cpu", torch.bfloat16):
        cast = flex_attention(*qkv, change, mask)
    assert cast.dtype is torch.bfloat16
    torch.testing.assert_close(cast.float(), o, rtol=0.03, atol=0.03)


def test_strides_do_not_matter():
    qkv = tensors()
    turned = [each.detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_() for each in qkv]
    for mask in (None, block_mask(causal)):
        ours, theirs = flex_attention(*qkv, None, mask), flex_attention(*turned, None, mask)
        assert torch.equal(ours, theirs)
        assert all(map(torch.equal, *(torch.autograd.grad(o.sum(), x) for o, x in ((ours, qkv), (theirs, turned)))))


def test_second_derivatives_and_vmap_are_refused():
    qkv = tensors()
    change = SERVED["softcap"].make({})
    (grad,) = torch.autograd.grad(flex_attention(*qkv, change).square().sum(), qkv[0], create_graph=True)
    with pytest.raises(NotImplementedError, match="a gradient of a gradient"):
        grad.sum().backward()
    stacked = (each[None] for each in qkv)
    with pytest.raises(NotImplementedError, match=r"does not support torch\.func\.vmap"):
        torch.vmap(flex_attention)(*stacked)


# ---- what is kept ----


def made_masks(monkeypatch):
    """Notes each mask that is made of a BlockMask."""
    made, make = [], _block_mask.made_from_block_mask
    monkeypatch.setattr(_block_mask, "made_from_block_mask", lambda *given: made.append(make(*given)) or made[-1])
    return made


def test_the_mask_of_a_block_mask_is_made_once_and_anew_where_its_tensors_change(monkeypatch):
    made = made_masks(monkeypatch)
    ids = torch.zeros(1, N, dtype=torch.int64)

    def mask_mod(b, h, i, j):
        return (ids[b, i] == ids[b, j]) & (i >= j)

    mask, qkv = block_mask(mask_mod), tensors()
    names = set(vars(mask))
    whole = flex_attention(*qkv, None, mask)
    assert torch.equal(flex_attention(*qkv, None, mask), whole) and len(made) == 1
    assert set(vars(mask)) == names
    ids[:, N // 2 :] = 1
    check(qkv, None, mask, mask_mod(*indices(1, 1, N, N)))
    assert len(made) == 2
    for write in (lambda: ids.numpy().fill(0), lambda: ids.data.copy_(torch.arange(N) // 9)):  # count no versions
        write()
        check(qkv, None, mask, mask_mod(*indices(1, 1, N, N)))
    ids = ids.new_zeros(1, N).zero_()
    assert torch.equal(flex_attention(*qkv, None, mask), whole) and len(made) == 5
    mask.kv_num_blocks.zero_()
    assert not flex_attention(*qkv, None, mask).any() and len(made) == 6


def test_large_tensors_are_watched_by_their_versions(monkeypatch):
    monkeypatch.setattr(kept, "_COMPARED", 0)
    made, qkv = made_masks(monkeypatch), tensors()
    ids = torch.zeros(1, N, dtype=torch.int64)

    def mask_mod(b, h, i, j):
        return (ids[b, i] == ids[b, j]) & (i >= j)

    mask = block_mask(mask_mod)
    for _ in range(2):
        check(qkv, None, mask, mask_mod(*indices(1, 1, N, N)))
    assert len(made) == 1
    ids[:, 9:] = 1
    check(qkv, None, mask, mask_mod(*indices(1, 1, N, N)))
    ids = ids.new_zeros(1, N).zero_()  # of the same version
    check(qkv, None, mask, mask_mod(*indices(1, 1, N, N)))
    assert len(made) == 3


def test_a_mask_is_made_anew_where_a_function_captures_another_thing(monkeypatch):
    made = made_masks(monkeypatch)
    window = 3

    def mask_mod(b, h, i, j):
        return (i >= j) & (i - j < window)

    qkv, mask = tensors(), block_mask(functools.partial(mask_mod))
    for window in (3, 5):  # noqa: B007
        check(qkv, None, mask, mask_mod(*indices(1, 1, N, N)))
    flex_attention(*qkv, None, mask)
    assert len(made) == 2
    mask.mask_mod = causal
    check(qkv, None, mask, causal(*indices(1, 1, N, N)))


class Within:
    """A predicate that is no function: what it holds is not looked into."""

    def __init__(self, window):
        self.window = window

    def __call__(self, b, h, i, j):
        return (i >= j) & (i - j < self.window)


def test_the_mask_of_an_object_that_can_change_unseen_is_not_kept():
    within, qkv = Within(3), tensors()
    mask = block_mask(within)
    flex_attention(*qkv, None, mask)
    within.window = 9
    check(qkv, None, mask, within(*indices(1, 1, N, N)))


def test_masks_are_not_kept_longer_than_what_they_are_made_of():
    before = set(kept._kept)
    mask, qkv = block_mask(causal), tensors()

    def change(s, b, h, i, j):
        return torch.where(i >= j, s, -torch.inf)

    flex_attention(*qkv, change, mask)
    assert len(set(kept._kept) - before) == 3  # the mask of each, and the arguments of the score_mod
    del mask, change
    gc.collect()
    assert not set(kept._kept) - before


def test_what_a_score_mod_computes_is_read_once_and_anew_where_it_learns_or_changes(monkeypatch):
    calls, bias, qkv = [], torch.randn(N), tensors()

    def change(s, b, h, i, j):
        return s + bias[j]

    read = with_functions.recognise
    monkeypatch.setattr(with_functions, "recognise", lambda *given: calls.append(given) or read(*given))
    with torch.inference_mode():
        flex_attention(*qkv, change)
    with torch.no_grad():
        flex_attention(*qkv, change)
    for _ in range(2):
        torch.autograd.grad(flex_attention(*qkv, change).sum(), qkv)  # what inference made may not be saved
    assert len(calls) == 3
    bias.add_(1)
    check(qkv, change)
    bias.requires_grad_()
    for _ in range(2):
        assert torch.autograd.grad(flex_attention(*qkv, change).square().sum(), bias)[0].any()
        with torch.no_grad():
            flex_attention(*qkv, change)
    assert len(calls) == 7  # twice with gradients, once without


def test_numbers_in_nested_dictionaries_are_watched():
    held, qkv = {"a": {"by": 1.0}, "b": {"by": 2.0}, "c": {"by": 3.0}}, tensors()

    def change(s, b, h, i, j):
        return s * held["a"]["by"] + held["b"]["by"] * i + held["c"]["by"] * j

    check(qkv, change)
    for each in held.values():
        each["by"] += 0.25
        check(qkv, change)


def test_the_settings_of_a_module_are_not_taken_for_fixed(monkeypatch):
    settings, other, qkv = ModuleType("settings"), SimpleNamespace(by=1.0), tensors()

    def of_module(s, b, h, i, j):
        return s + j * settings.rate

    def of_object(s, b, h, i, j):
        return s * other.by

    def of_global(s, b, h, i, j):
        def scaled():
            return s * RATE

        return scaled()

    for settings.rate, other.by in ((0.1, 1.0), (0.2, 2.0)):
        monkeypatch.setitem(globals(), "RATE", settings.rate)
        for change in (of_module, of_object, of_global):
            check(qkv, change)


def test_a_score_mod_reads_its_tensors_in_each_call():
    lengths, qkv = torch.tensor([N, N]), tensors()

    def change(s, b, h, i, j):
        return torch.where(j < lengths[b], s, -torch.inf)

    for length in (N, 9, 1):
        lengths[1] = length
        check(qkv, change)


# ---- FlexAttention itself ----


@pytest.mark.parametrize("name", [*SERVED, None])
@since("_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG")
def test_flex_attention_itself(name, monkeypatch):
    """Forward: it has no backward on a CPU."""
    monkeypatch.setattr(flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    qkv = [each.detach() for each in tensors()]
    change = SERVED[name].make(SERVED[name].captured()) if name else None
    mask = block_mask(causal)
    theirs = flex.flex_attention(*qkv, change, mask, return_aux=flex.AuxRequest(lse=True))
    ours = flex_attention(*qkv, change, mask, return_aux=flex.AuxRequest(lse=True))
    torch.testing.assert_close(ours[0], theirs[0], **CLOSE)
    torch.testing.assert_close(ours[1].lse, theirs[1].lse, **CLOSE)


# ---- refusals ----


def of_numbers():
    mask = block_mask(causal)
    mask.mask_mod = lambda b, h, i, j: i - j
    return mask


def nested():
    return torch.nested.nested_tensor([torch.randn(4, 3, 8)], layout=torch.jagged)


def heads(of_query, of_key, **options):
    return lambda q, k, v: flex_attention(tensors(query_heads=of_query)[0], k[:, :of_key], v[:, :of_key], **options)


def eight(tensor):
    return tensor.to(torch.float8_e4m3fn)


@pytest.mark.parametrize(
    ("call", "kind", "sentence"),
    [
        (heads(4, 2), ValueError, r"but got Hq=4 and Hkv=2\. Try setting enable_gqa=True for GQA\.$"),
        (heads(3, 2, enable_gqa=True), ValueError, "to be a multiple of kv heads for GQA but got Hq=3 and Hkv=2"),
        (
            lambda q, k, v: flex_attention(q, k.double(), v),
            ValueError,
            "same dtype, but got query.dtype: torch.float32",
        ),
        (
            lambda q, k, v: flex_attention(q, k.to("meta"), v),
            ValueError,
            "same device type, but got query.device: cpu, ",
        ),
        (lambda q, k, v: flex_attention(q, eight(k), eight(v)), TypeError, r"^key has dtype torch\.float8_e4m3fn; exp"),
        (lambda q, k, v: flex_attention(q[0], k, v), ValueError, r"query has shape \[4, 40, 16\]; expected \(batch, h"),
        (lambda q, k, v: flex_attention(np.zeros(3), k, v), TypeError, "^query is ndarray of float64"),
        (lambda q, k, v: flex_attention(nested(), k, v), TypeError, "^query is a nested tensor; expected a dense one"),
        (
            lambda q, k, v: flex_attention(q, k, v, kernel_options={"BLOCKS": 3}),
            ValueError,
            "^kernel_options has 'BLOCKS', which FlexAttention does not know$",
        ),
        (
            lambda q, k, v: flex_attention(q, k, v, None, block_mask(causal, 64, N)),
            ValueError,
            r"^block_mask was created for block_mask\.shape=\(1, 1, 64, 40\) but got q_len=40 and kv_len=40\. .* la",
        ),
        (
            lambda q, k, v: flex_attention(q, k, v, None, block_mask(causal, 8, N)),
            ValueError,
            "but got q_len=40 and kv_len=40. As the block mask was created for a smaller length than you're using it",
        ),
        (
            lambda q, k, v: flex_attention(q, k, v, None, block_mask(causal)[:, :, 0]),
            RuntimeError,
            "^Cannot use mask_mod from a sliced BlockMask$",
        ),
        (
            lambda q, k, v: flex_attention(q, k, v, None, of_numbers()),
            TypeError,
            "^mask_mod returned torch.int64; expec",
        ),
        (
            lambda q, k, v: flex_attention(q, k, v, None, "causal"),
            TypeError,
            "mask is str 'causal'; expected a Mask, Row",
        ),
        (lambda q, k, v: flex_attention(q, k, v, scale="1"), TypeError, "scale is str '1'; expected a number"),
        (
            lambda q, k, v: flex_attention(
                q, k, v, return_lse=True, return_aux=SimpleNamespace(lse=True, max_scores=False)
            ),
            ValueError,
            "^Cannot specify both return_lse and return_aux",
        ),
    ],
)
def test_refusals(call, kind, sentence):
    with pytest.raises(kind, match=sentence):
        call(*tensors())


@pytest.mark.slow
def test_importing_the_package_imports_neither_torch_nor_flex_attention():
    import subprocess
    import sys

    code = (
        "import sys, flashmask; from flashmask import flex_attention; assert 'torch' not in sys.modules\n"
        "import torch; q = torch.zeros(1, 1, 2, 8); flex_attention(q, q, q, lambda s, b, h, i, j: s + i)\n"
        "assert 'torch.nn.attention.flex_attention' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
