# SPDX-License-Identifier: Apache-2.0
"""attention(): values and gradients against the formula, shapes, layouts, dtypes and messages."""

import pytest
import torch
from attention_oracle import assert_within_bound, random_inputs, softmax_attention, value_and_gradients
from mask_families import FAMILIES, N, visible

import flashmask
from flashmask import masks
from flashmask._info import kernels

pytestmark = pytest.mark.kernels

HALVES = (torch.bfloat16, torch.float16)


def check(inputs, mask, seen, dtype, scale=None):
    """Holds attention(), its lse and its gradients against the formula; `seen` None: all."""
    q, k, v, grad_o, grad_lse = inputs
    rounded = [t.to(dtype) for t in (q, k, v, grad_o)]

    def formula(q, k, v):
        return softmax_attention(q, k, v, seen, scale)

    def ours(q, k, v):
        return flashmask.attention(q, k, v, mask, scale=scale, return_lse=True)

    run = [(formula, torch.float64), (formula, dtype), (ours, dtype)]
    reference, naive, found = (
        value_and_gradients(compute, rounded[:3], rounded[3], grad_lse, kind) for compute, kind in run
    )
    assert found[0].dtype == dtype
    assert found[1].dtype == torch.float32
    assert_within_bound(found, reference, naive, dtype)


@pytest.mark.parametrize("name", FAMILIES)
def test_agrees_with_a_softmax_for_every_family(name):
    mask = FAMILIES[name]()
    shape = mask.shape
    check(random_inputs(2, N, N, 4, 2, 16, 24), mask, visible(mask), torch.float32)
    assert (shape.rows, shape.columns) == (N, N)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", ["causal_document", "random_dense_heads_and_batch", "empty_rows"])
def test_agrees_with_a_softmax_in_half_precision(name, dtype):
    mask = FAMILIES[name]()
    check(random_inputs(2, N, N, 4, 2, 32, 32), mask, visible(mask), dtype)


@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (3, 1), (6, 2), (7, 7), (12, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_shares_key_heads_among_query_heads(heads, kv_heads, dtype):
    mask = masks.causal_document([33, 20], 53)
    check(random_inputs(1, 53, 53, heads, kv_heads, 20, 20), mask, visible(mask), dtype)


@pytest.mark.parametrize(("rows", "columns"), [(1, 90), (90, 1), (17, 130), (130, 17)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_takes_different_query_and_key_lengths(rows, columns, dtype):
    mask = masks.causal(rows, columns)
    i, j = torch.arange(rows)[:, None], torch.arange(columns)[None]
    seen = (j <= i + columns - rows)[None, None]
    check(random_inputs(2, rows, columns, 4, 2, 16, 8), mask, seen, dtype)


@pytest.mark.parametrize("heads", [1, 2, 6])
@pytest.mark.parametrize("batch", [1, 3])
def test_takes_masks_of_each_head_and_batch_entry(heads, batch):
    seen = torch.rand(batch, heads, 40, 50, generator=torch.Generator().manual_seed(1)) < 0.4
    check(random_inputs(3, 40, 50, 6, 2, 16, 16), masks.from_dense(seen), seen, torch.float32)


@pytest.mark.parametrize("make", ["no mask", "booleans", "row indices"])
def test_takes_each_kind_of_mask(make):
    inputs = random_inputs(1, 60, 60, 2, 2, 16, 16)
    i, j = torch.arange(60)[:, None], torch.arange(60)[None]
    if make == "no mask":
        check(inputs, None, None, torch.float32)
    elif make == "booleans":
        check(inputs, j <= i, (j <= i)[None, None], torch.float32)
    else:
        ids = torch.tensor([0] * 25 + [1] * 35)
        same = ids[:, None] == ids[None]
        check(inputs, masks.from_document_ids(ids), ((j <= i) & same)[None, None], torch.float32)


@pytest.mark.parametrize("scale", [0.3, -0.2, 1])
def test_scales_the_scores(scale):
    mask = masks.causal(33, 33)
    check(random_inputs(1, 33, 33, 2, 1, 8, 8), mask, visible(mask), torch.float32, scale)


@pytest.mark.parametrize("shape", [(0, 5, 7), (2, 0, 7), (2, 5, 0), (0, 0, 0)])
def test_takes_sizes_of_zero(shape):
    batch, rows, columns = shape
    inputs = random_inputs(batch, rows, columns, 2, 1, 8, 4)
    q, k, v = (t.requires_grad_() for t in inputs[:3])
    o, lse = flashmask.attention(q, k, v, masks.full(rows, columns), return_lse=True)
    assert o.shape == (batch, rows, 2, 4)
    assert lse.shape == (batch, 2, rows)
    assert torch.equal(o, torch.zeros_like(o))
    assert torch.isneginf(lse).all()
    for gradient in torch.autograd.grad(o.sum(), (q, k, v)):
        assert torch.equal(gradient, torch.zeros_like(gradient))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_takes_no_heads(dtype):
    q = torch.zeros(2, 5, 0, 8, dtype=dtype, requires_grad=True)
    o, lse = flashmask.attention(q, q, q, masks.causal(5, 5), return_lse=True)
    assert o.shape == q.shape
    assert lse.shape == (2, 0, 5)
    assert torch.autograd.grad(o.sum(), q)[0].shape == q.shape


@pytest.mark.parametrize(("heads", "kv_heads"), [(0, 2), (2, 0)])
def test_refuses_no_heads_beside_some(heads, kv_heads):
    q, k = (torch.zeros(2, 5, count, 8) for count in (heads, kv_heads))
    with pytest.raises(ValueError, match=f"q has {heads} heads; expected a multiple of those of k, {kv_heads}"):
        flashmask.attention(q, k, k, masks.causal(5, 5))


def test_gives_empty_rows_zeros_and_no_gradient():
    mask = FAMILIES["empty_rows"]()
    q, k, v, grad_o, grad_lse = random_inputs(1, N, N, 2, 2, 16, 16)
    leaves = [t.requires_grad_() for t in (q, k, v)]
    o, lse = flashmask.attention(*leaves, mask, return_lse=True)
    assert torch.equal(o[:, 10:20], torch.zeros_like(o[:, 10:20]))
    assert torch.isneginf(lse[..., 10:20]).all()
    chosen = torch.autograd.grad((o * grad_o)[:, 10:20].sum() + (lse * grad_lse)[..., 0].sum(), leaves)
    assert torch.equal(chosen[0][:, 10:20], torch.zeros_like(chosen[0][:, 10:20]))
    assert all(torch.isfinite(gradient).all() for gradient in chosen)


def test_takes_the_layout_with_heads_first():
    mask = masks.causal(40, 40)
    q, k, v, grad_o, _ = random_inputs(2, 40, 40, 4, 2, 16, 8)
    plain = [t.clone().requires_grad_() for t in (q, k, v)]
    swapped = [t.transpose(1, 2).contiguous().requires_grad_() for t in (q, k, v)]
    o, lse = flashmask.attention(*plain, mask, return_lse=True)
    p, swapped_lse = flashmask.attention(*swapped, mask, layout="bhsd", return_lse=True)
    assert torch.equal(o, p.transpose(1, 2))
    assert torch.equal(lse, swapped_lse)
    ours = torch.autograd.grad((p * grad_o.transpose(1, 2)).sum(), swapped)
    theirs = torch.autograd.grad((o * grad_o).sum(), plain)
    for a, b in zip(ours, theirs, strict=True):
        assert torch.equal(a.transpose(1, 2), b)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_reads_any_strides(dtype):
    mask = masks.causal(30, 30)
    q, k, v, grad_o, _ = (t.to(dtype) for t in random_inputs(2, 30, 30, 2, 2, 16, 16))
    scattered = [
        q.permute(3, 1, 0, 2).contiguous().permute(2, 1, 3, 0),  # a last stride that is not 1
        torch.cat([k, k], dim=3)[..., 16:],
        v[:1].expand(2, -1, -1, -1),
    ]
    plain = [t.contiguous().requires_grad_() for t in scattered]
    leaves = [t.requires_grad_() for t in scattered]
    assert [t.stride(-1) for t in leaves] != [1, 1, 1]
    expected, found = flashmask.attention(*plain, mask), flashmask.attention(*leaves, mask)
    assert torch.equal(expected, found)
    wide = grad_o.transpose(0, 3).contiguous().transpose(0, 3)
    for a, b in zip(
        torch.autograd.grad(found, leaves, wide), torch.autograd.grad(expected, plain, grad_o), strict=True
    ):
        assert torch.equal(a, b)


def test_passes_gradients_of_a_sum_on():
    q, k, v, *_ = (t.requires_grad_() for t in random_inputs(1, 20, 20, 2, 2, 8, 8))
    flashmask.attention(q, k, v).sum().backward()  # its gradient has strides of zero
    expected = torch.autograd.grad(softmax_attention(q, k, v)[0].sum(), v)[0]
    torch.testing.assert_close(v.grad, expected)


def test_gives_gradients_to_whom_asks_for_them():
    q, k, v, *_ = random_inputs(1, 20, 20, 2, 2, 8, 8)
    k.requires_grad_()
    o = flashmask.attention(q, k, v)
    o.sum().backward()
    assert k.grad is not None
    assert q.grad is None
    with torch.no_grad():
        assert not flashmask.attention(q, k, v).requires_grad
    (only_lse,) = torch.autograd.grad(flashmask.attention(q, k, v, return_lse=True)[1].sum(), k)
    expected = torch.autograd.grad(softmax_attention(q, k, v)[1].sum(), k)[0]
    torch.testing.assert_close(only_lse, expected)


@pytest.mark.parametrize("name", ["causal_document", "random_dense", "empty_rows", "random_dense_heads_and_batch"])
def test_double_precision_is_the_reference(name):
    mask = FAMILIES[name]()
    inputs = [t.double() for t in random_inputs(2, N, N, 4, 2, 8, 8)]
    q, k, v, grad_o, grad_lse = inputs

    def ours(q, k, v):
        return flashmask.attention(q, k, v, mask, return_lse=True)

    found = value_and_gradients(ours, (q, k, v), grad_o, grad_lse, torch.float64)
    expected = value_and_gradients(
        lambda q, k, v: softmax_attention(q, k, v, visible(mask)), (q, k, v), grad_o, grad_lse, torch.float64
    )
    assert found[1].dtype == torch.float64
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("mask", ["intervals", "bits"])
def test_gradients_are_those_of_finite_differences(mask):
    seen = torch.rand(1, 2, 5, 6, generator=torch.Generator().manual_seed(4)) < 0.6
    seen[..., 0] = True  # finite differences of -inf are none
    chosen = masks.causal(5, 6) if mask == "intervals" else masks.from_dense(seen)
    q, k, v, *_ = (t.double().requires_grad_() for t in random_inputs(1, 5, 6, 2, 1, 3, 2))
    assert torch.autograd.gradcheck(lambda *t: flashmask.attention(*t, chosen, return_lse=True), (q, k, v))


def test_the_same_bits_for_any_number_of_threads():
    mask = masks.causal_document([300, 212], 512)
    q, k, v, grad_o, _ = random_inputs(1, 512, 512, 4, 2, 64, 64)
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            leaves = [t.clone().requires_grad_() for t in (q, k, v)]
            o = flashmask.attention(*leaves, mask, deterministic=True)
            results.append([o, *torch.autograd.grad(o, leaves, grad_o)])
    finally:
        torch.set_num_threads(before)
    for a, b in zip(*results, strict=True):
        assert torch.equal(a, b)


def tensors(q=(2, 8, 4, 16), k=(2, 8, 2, 16), v=(2, 8, 2, 16), dtype=torch.float32):
    return [torch.zeros(shape, dtype=dtype) for shape in (q, k, v)]


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"q": (8, 4, 16)}, r"q has shape \[8, 4, 16\]; expected \(batch, sequence, heads, head dim\)"),
        ({"k": (3, 8, 2, 16)}, "k has a batch of 3; expected 2"),
        ({"v": (2, 9, 2, 16)}, "v has 9 tokens; expected 8, as many as k"),
        ({"v": (2, 8, 1, 16)}, "v has 1 heads; expected 2, as many as k"),
        ({"k": (2, 8, 3, 16), "v": (2, 8, 3, 16)}, "q has 4 heads; expected a multiple of those of k, 3"),
        ({"k": (2, 8, 2, 8)}, "k has a head dim of 8; expected 16, that of q"),
        ({"q": (2, 8, 4, 600), "k": (2, 8, 2, 600)}, "q has a head dim of 600; expected 1 to 512"),
        ({"q": (2, 8, 4, 0), "k": (2, 8, 2, 0)}, "q has a head dim of 0"),
    ],
)
def test_refuses_shapes_that_do_not_fit(shapes, message):
    with pytest.raises(ValueError, match=message):
        flashmask.attention(*tensors(**shapes))


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (lambda: masks.causal(10, 8), "mask has 10 rows; expected 8, the tokens of q"),
        (lambda: masks.causal(8, 9), "mask has 9 columns; expected 8, the tokens of k"),
        (lambda: masks.from_dense(torch.ones(3, 1, 8, 8, dtype=torch.bool)), "mask has a batch of 3; expected 1 or 2"),
        (lambda: torch.ones(3, 8, 8, dtype=torch.bool), r"mask has 3 heads; expected 1, 2 .*or 4"),
        (lambda: masks.from_document_ids(torch.zeros(9, dtype=torch.int64)), "9 columns; expected 8"),
    ],
)
def test_refuses_masks_that_do_not_fit(mask, message):
    with pytest.raises(ValueError, match=message):
        flashmask.attention(*tensors(), mask())


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"scale": 0.0}, ValueError, "scale is 0.0"),
        ({"scale": float("nan")}, ValueError, "scale is nan"),
        ({"scale": "1"}, TypeError, "scale is str '1'"),
        ({"layout": "sbhd"}, ValueError, "layout is 'sbhd'; expected one of 'bshd', 'bhsd'"),
        ({"mask": "causal"}, TypeError, "mask is str 'causal'"),
        ({"mask": torch.zeros(8, 8)}, TypeError, "float32"),
        ({"plan": masks}, TypeError, "plan is module"),
    ],
)
def test_refuses_other_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        flashmask.attention(*tensors(), **arguments)


def test_refuses_dtypes():
    with pytest.raises(TypeError, match=r"q has dtype torch\.int32; expected"):
        flashmask.attention(*tensors(dtype=torch.int32))
    q, k, v = tensors()
    with pytest.raises(TypeError, match=r"torch.float32, torch.float16 and torch.float32; expected one dtype"):
        flashmask.attention(q, k.half(), v)
    with pytest.raises(TypeError, match="k is ndarray"):
        flashmask.attention(q, k.numpy(), v)


def test_says_which_devices_compute():
    from torch._subclasses import FakeTensorMode

    from flashmask._torch.operators import _refuse_device

    with FakeTensorMode(allow_non_fake_inputs=True):
        q = torch.empty(1, 8, 2, 16, device="cuda")
    with pytest.raises(ValueError, match=r"on cuda:0; this build of flashmask computes on the devices: cpu"):
        _refuse_device(q, q, q)
    assert torch._C._dispatch_has_kernel_for_dispatch_key("flashmask::forward", "CompositeExplicitAutograd")


@pytest.mark.skipif(
    not torch.cuda.is_available() or any(kernel["device"] == "cuda" for kernel in kernels()),
    reason="there is no CUDA device to refuse, or this build computes there",
)
def test_refuses_cuda_tensors_clearly():
    q, k, v = (t.cuda() for t in tensors())
    rows = torch.full((1, 1, 8, 1), 8, dtype=torch.int32, device="cuda")
    cu_seqlens = torch.tensor([0, 8], device="cuda")
    calls = [
        lambda q: flashmask.attention(q, k, v, masks.causal(8, 8)),
        lambda q: flashmask.flashmask_attention(q, k, v, rows, causal=True),
        lambda q: flashmask.flashmask_attention(q, k, v, window_size=3, dropout=0.1),
        lambda q: flashmask.varlen_attention(q[0], k[0], v[0], cu_seqlens, cu_seqlens),
    ]
    for call in calls:
        for query in (q, q.clone().requires_grad_()):
            with pytest.raises(ValueError, match=r"on cuda:0; this build of flashmask computes on the devices: cpu"):
                call(query)


def test_what_nobody_sees_changes_no_bit_where_products_are_finite():
    """A document beside one with huge numbers has its bits, and so have its gradients."""
    mask = masks.causal_document([100, 156])

    def first_document(huge):
        q, k, v = (t.clone() for t in random_inputs(1, 256, 256, 2, 1, 64, 64)[:3])
        k[:, 100:], v[:, 100:] = (1e30, 1e30) if huge else (0, 0)
        inputs = [t.requires_grad_() for t in (q, k, v)]
        o = flashmask.attention(*inputs, mask)
        return [t[:, :100] for t in (o, *torch.autograd.grad(o[:, :100].sum(), inputs))]

    for found, expected in zip(first_document(True), first_document(False), strict=True):
        assert torch.equal(found, expected)
        assert found.isfinite().all()
