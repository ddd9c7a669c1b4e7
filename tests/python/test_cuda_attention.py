# SPDX-License-Identifier: Apache-2.0
"""Attention of CUDA tensors against float64: every kind of mask, dtypes, shapes, strides, and what is refused."""

import copy
import pickle

import pytest
import torch
from cuda_device import KERNELS, check, inputs, needs_gpu
from mask_families import FAMILIES, N, visible

import flashmask
from flashmask import masks

pytestmark = needs_gpu
DTYPES = (torch.bfloat16, torch.float16)


def attend(*arguments, **options):
    return lambda q, k, v: flashmask.attention(q, k, v, *arguments, return_lse=True, **options)


def causal_rows(tokens):
    return torch.ones(tokens, tokens, dtype=torch.bool).tril()[None, None]


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_family_holds_the_bound(name, dtype):
    mask = FAMILIES[name]()
    check(attend(mask), inputs(2, N, N, 4, 2, 64, dtype=dtype), visible(mask))


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("deterministic", [False, True])
def test_gradients_of_every_family_hold_the_bound(name, deterministic):
    mask = FAMILIES[name]()
    given = inputs(2, N, N, 4, 2, 64)
    check(attend(mask, deterministic=deterministic), given, visible(mask), gradients=True)


SHAPES = {
    "GQA": (2, 300, 300, 6, 2, 128, 128),
    "fewer queries than keys": (1, 130, 517, 4, 1, 64, 64),
    "more queries than keys": (1, 517, 130, 4, 1, 64, 64),
    "another value dim": (1, 200, 200, 2, 2, 128, 64),
    "the largest head dim on Hopper": (1, 150, 150, 2, 1, 256, 256),
    "the largest head dim": (1, 300, 300, 4, 2, 512, 512),
    "wide heads that are padded": (1, 150, 200, 2, 1, 264, 392),
    "a head dim between the kernels'": (1, 200, 200, 2, 1, 72, 40),
    "head dims that are padded": (1, 200, 200, 2, 1, 20, 3),
}


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("gradients", [False, True], ids=["forward", "and backward"])
def test_shapes_hold_the_bound(name, gradients):
    given = inputs(*SHAPES[name])
    mask = masks.sliding_window(given[0].shape[1], given[1].shape[1], 90)
    check(attend(mask), given, visible(mask), gradients=gradients)
    check(attend(mask, scale=0.3), given, visible(mask), scale=0.3, gradients=gradients)


def test_without_a_mask_everything_is_seen():
    given = inputs(1, 200, 300, 4, 2, 64)
    check(attend(), given, None)
    check(
        lambda q, k, v: flashmask.flashmask_attention(q, k, v, causal=True, return_softmax_lse=True),
        inputs(1, 200, 200, 4, 2, 64),
        causal_rows(200),
    )


@pytest.mark.parametrize("heads", [1, 2, 6])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("n", [1, 2, 4])
def test_row_indices_of_heads_and_batch_entries(heads, batch, n):
    tokens = 150
    causal = n == 1
    rows = torch.randint(0, tokens + 1, (batch, heads, tokens, n), dtype=torch.int32).sort(-1).values
    mask = masks.from_startend_row_indices(rows, causal=causal)
    check(
        lambda q, k, v: flashmask.flashmask_attention(q, k, v, rows.cuda(), causal=causal, return_softmax_lse=True),
        inputs(3, tokens, tokens, 6, 2, 64),
        visible(mask),
    )


@pytest.mark.parametrize("options", [{}, {"causal": False}, {"window": 30}, {"prefix": 11}], ids=str)
def test_packed_documents_of_tensors_on_the_device(options):
    tokens = 300
    ends = torch.tensor([0, 70, 70, 200, 290])
    positions = torch.cat([torch.arange(n) for n in (70, 130, 100)])
    for build, argument, more in (
        (masks.from_cu_seqlens, ends, (tokens,)),
        (masks.from_position_ids, positions, ()),
        (masks.from_document_ids, positions.eq(0).cumsum(0), ()),
    ):
        rows = build(argument.cuda(), *more, **options)
        check(attend(rows), inputs(1, tokens, tokens, 2, 1, 64), visible(build(argument, *more, **options)))


def test_trees_of_tensors_on_the_device():
    parents, lengths = torch.tensor([-1, 0, 1, 1, 0, -1]), torch.tensor([70, 0, 65, 40, 90, 30])
    rows = masks.from_tree(parents.cuda(), lengths.cuda(), 300)
    check(attend(rows), inputs(1, 300, 300, 2, 1, 64), visible(masks.from_tree(parents, lengths, 300)))


@pytest.mark.parametrize("tokens", [150, 161])
def test_block_diffusion_of_tensors_on_the_device(tokens):
    """Noisy tokens, then clean ones; rows of booleans that fill whole words, and that do not."""
    ends = torch.tensor([0, 70, 70, 141])
    visible = masks.packed_block_diffusion(ends.cuda(), 16, tokens)
    expected = masks.packed_block_diffusion(ends, 16, tokens)
    assert torch.equal(visible.cpu(), expected)
    check(attend(visible), inputs(1, 2 * tokens, 2 * tokens, 2, 1, 64), expected[None, None])


def test_rows_that_see_nothing_are_zero():
    seen = torch.ones(200, 200, dtype=torch.bool).tril()
    seen[40:150] = False
    o, lse = check(attend(masks.from_dense(seen)), inputs(1, 200, 200, 2, 1, 64), seen[None, None])
    assert (o[:, 40:150] == 0).all()
    assert torch.isneginf(lse[..., 40:150]).all()


@pytest.mark.parametrize("sides", [(-1, -1), (20, 0), (20, 9)], ids=str)
@pytest.mark.parametrize("causal", [False, True])
def test_varlen_is_each_sequence_alone(sides, causal):
    q, k, v, *_ = inputs(1, 300, 350, 4, 2, 64)
    ends_q, ends_k = [0, 100, 130, 290], [0, 120, 200, 340]
    cu_q, cu_k = (torch.tensor(ends, dtype=torch.int32).cuda() for ends in (ends_q, ends_k))
    o, lse = flashmask.varlen_attention(q[0], k[0], v[0], cu_q, cu_k, causal=causal, window_size=sides, return_lse=True)
    for i in range(3):
        of_q, of_k = slice(ends_q[i], ends_q[i + 1]), slice(ends_k[i], ends_k[i + 1])
        window = [None if side < 0 else side for side in sides]
        alone = flashmask.flashmask_attention(
            q[:, of_q], k[:, of_k], v[:, of_k], causal=causal, window_size=window, return_softmax_lse=True
        )
        torch.testing.assert_close(o[of_q], alone[0][0], atol=2e-2, rtol=2e-2)
        torch.testing.assert_close(lse[:, of_q], alone[1][0], atol=1e-3, rtol=1e-3)
    assert (o[290:] == 0).all()


def test_merge_joins_two_sets_of_keys():
    q, k, v, *_ = inputs(1, 100, 400, 4, 2, 64)
    early = flashmask.attention(q, k[:, :150], v[:, :150], return_lse=True)
    late = flashmask.attention(q, k[:, 150:], v[:, 150:], return_lse=True)
    whole = flashmask.attention(q, k, v, return_lse=True)
    for joined, expected in zip(flashmask.merge(*early, *late), whole, strict=True):
        torch.testing.assert_close(joined, expected, atol=2e-2, rtol=2e-2)


def views():
    """Tensors that kernels read where they lie, and others that are copied."""
    packed = torch.randn(2, 200, 3, 4, 64).bfloat16().cuda()
    wide = torch.randn(2, 200, 4, 67).bfloat16().cuda()
    flat = torch.randn(2 * 200 * 4 * 64 + 1).bfloat16().cuda()
    return {
        "of one projection": tuple(packed.unbind(2)),
        "heads first": tuple(t.transpose(1, 2).contiguous().transpose(1, 2) for t in packed.unbind(2)),
        "rows of odd length": (wide[..., :64],) * 3,
        "columns apart": (wide.transpose(2, 3).contiguous().transpose(2, 3)[..., :64],) * 3,
        "an odd address": (flat[1:].view(2, 200, 4, 64),) * 3,
        "one batch entry twice": tuple(t[:1].expand(2, -1, -1, -1) for t in packed.unbind(2)),
    }


@pytest.mark.parametrize("name", ["of one projection", "heads first", "rows of odd length", "columns apart",
                                  "an odd address", "one batch entry twice"])  # fmt: skip
def test_any_strides_do(name):
    q, k, v = views()[name]
    mask = masks.causal(200, 200)
    assert torch.equal(
        flashmask.attention(q, k, v, mask), flashmask.attention(*(t.clone(memory_format=torch.contiguous_format)
                                                                  for t in (q, k, v)), mask)
    )  # fmt: skip
    first = [t.transpose(1, 2) for t in (q, k, v)]
    o = flashmask.attention(*first, mask, layout="bhsd")
    assert torch.equal(o.transpose(1, 2), flashmask.attention(q, k, v, mask))


@pytest.mark.parametrize("shape", [(0, 8, 8, 2, 1, 64), (1, 0, 8, 2, 1, 64), (2, 8, 0, 2, 1, 64)], ids=str)
def test_sizes_of_zero(shape):
    q, k, v, *_ = inputs(*shape)
    o, lse = flashmask.attention(q, k, v, return_lse=True)
    assert o.shape == q.shape
    assert (o == 0).all()
    assert torch.isneginf(lse).all()


def gradients_of(q, k, v, grad_o, mask, deterministic):
    leaves = [t.detach().requires_grad_() for t in (q, k, v)]
    o = flashmask.attention(*leaves, mask, deterministic=deterministic)
    return o.detach(), *torch.autograd.grad(o, leaves, grad_o)


@pytest.mark.skipif(torch.cuda.is_available() and torch.cuda.mem_get_info()[1] < 70e9, reason="takes 50 GB")
@pytest.mark.parametrize("deterministic", [False, True])
def test_more_than_two_to_the_31_elements(deterministic):
    tokens, heads, window, end = 131072 + 512, 128, 100, 512  # the last tokens alone say the same of the last 256
    q, k, v, grad_o = (torch.randn(1, tokens, heads, 128, device="cuda", dtype=torch.bfloat16) for _ in range(4))
    assert q.numel() > 2**31
    found = gradients_of(q, k, v, grad_o, masks.sliding_window(tokens, tokens, window), deterministic)
    alone = (t[:, -end:].contiguous() for t in (q, k, v, grad_o))
    expected = gradients_of(*alone, masks.sliding_window(end, end, window), deterministic)
    for large, small in zip(found, expected, strict=True):
        torch.testing.assert_close(large[:, -256:], small[:, -256:], rtol=2e-2, atol=2e-2)


def test_heads_may_lie_gigabytes_apart():
    far = 2**29 + 64
    storage = torch.empty(3 * far + 300 * 64, device="cuda", dtype=torch.bfloat16)
    given = inputs(1, 300, 300, 4, 2, 64)
    spread = storage.as_strided(given[0].shape, (0, 64, far, 1)).copy_(given[0])
    check(lambda _, k, v: attend(masks.causal(300, 300))(spread, k, v), given, causal_rows(300))


def test_neighbours_on_the_device_are_not_touched():
    """Fills the memory that results will take with NaN, as the caching allocator hands it out again."""
    given = inputs(1, 333, 333, 3, 3, 64)
    mask = masks.causal_document([100, 200, 33])
    expected = check(attend(mask), given, visible(mask))
    for _ in range(3):
        filled = [torch.full_like(t, torch.nan) for t in expected for _ in range(4)]
        del filled
        for found, right in zip(attend(mask)(*given[:3]), expected, strict=True):
            assert torch.equal(found, right)


def test_a_plan_is_for_its_device():
    q, k, v, *_ = inputs(1, 200, 200, 4, 2, 64)
    mask = masks.causal_document([120, 80])
    plan = flashmask.plan(mask, q, k, v)
    assert plan.problem.device == "cuda:0"
    assert plan.kernel("forward") in {kernel["name"] for kernel in KERNELS}
    assert f"m{plan.explain().tile_rows}n{plan.explain().tile_columns}" in plan.kernel("forward")
    expected = flashmask.attention(q, k, v, mask)
    for each in (plan, copy.deepcopy(plan), pickle.loads(pickle.dumps(plan))):
        assert torch.equal(flashmask.attention(q, k, v, plan=each), expected)
    everything = flashmask.plan(mask, q, k, v, visit="all")
    assert torch.equal(flashmask.attention(q, k, v, plan=everything), expected)
    rows = masks.from_cu_seqlens(torch.tensor([0, 120, 200]).cuda(), 200)
    assert torch.equal(flashmask.attention(q, k, v, plan=flashmask.plan(rows, q, k, v)), expected)
    with pytest.raises(ValueError, match=r"plan was made for cuda:0; arrays take one for the CPU"):
        flashmask.attention(*(t.float().cpu().numpy() for t in (q, k, v)), plan=plan)


@pytest.mark.parametrize("options", [{"visit": "all"}, {"form": "bits"}, {"reorder": True}], ids=str)
@pytest.mark.parametrize("gradients", [False, True], ids=["forward", "and backward"])
def test_what_a_plan_may_ask_for(options, gradients):
    tokens = 300
    order = torch.randperm(tokens)
    band = (torch.arange(tokens)[:, None] - torch.arange(tokens)).abs() < 20
    mask = masks.from_dense(band[order][:, order])
    given = inputs(2, tokens, tokens, 4, 2, 64)
    plan = flashmask.plan(mask, *given[:3], **options)
    check(attend(plan=plan), given, visible(mask), gradients=gradients)
    if "reorder" in options:
        assert plan.reordering.gained
        assert plan.reordering.tiles_after < plan.reordering.tiles_before


@pytest.mark.parametrize("name", ["a mask", "no mask", "row indices", "booleans"])
def test_the_host_never_waits(name):
    tokens = 2000
    given = {
        "a mask": masks.causal_document([1500, 500]),
        "no mask": None,
        "row indices": masks.from_cu_seqlens(torch.tensor([0, 1500, 2000]).cuda(), tokens),
        "booleans": causal_rows(tokens).cuda(),
    }[name]
    q, k, v, *_ = inputs(1, tokens, tokens, 2, 1, 64)
    flashmask.attention(q, k, v)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(2):
            flashmask.attention(q, k, v, given)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_one_mask_takes_one_plan(monkeypatch):
    from flashmask._plans.cache import PlanCache
    from flashmask._torch.plans import device_plans

    empty = PlanCache()
    monkeypatch.setattr(device_plans, "device_plans", empty)
    q, k, v, *_ = inputs(1, 200, 200, 4, 2, 64)
    mask = masks.causal_document([120, 80])
    for _ in range(3):
        flashmask.attention(q, k, v, mask)
    assert len(empty) == 1


def test_results_repeat_to_the_bit():
    given = inputs(2, 700, 700, 6, 2, 128)
    mask = masks.causal_document([100, 350, 250])
    expected = attend(mask)(*given[:3])
    for _ in range(200):
        found = attend(mask)(*given[:3])
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("way", ["argument", "torch", "plan"])
def test_deterministic_gradients_repeat_to_the_bit(way):
    given = inputs(2, 700, 700, 6, 2, 128)
    mask = masks.causal_document([100, 350, 250])
    leaves = [t.requires_grad_() for t in given[:3]]
    options = {"deterministic": True} if way == "argument" else {}
    torch.use_deterministic_algorithms(way == "torch")
    try:
        if way == "plan":
            options["plan"] = flashmask.plan(mask, *leaves, deterministic=True)
        runs = []
        for _ in range(50):
            o = flashmask.attention(*leaves, None if way == "plan" else mask, **options)
            runs.append(torch.autograd.grad(o, leaves, given[3]))
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(a, b) for run in runs for a, b in zip(run, runs[0], strict=True))


def test_what_a_gpu_does_not_compute_is_said():
    q, k, v, *_ = inputs(1, 64, 64, 2, 1, 64)
    rows = torch.full((1, 1, 64, 1), 64, dtype=torch.int32)
    for dtype in (torch.float32, torch.float64):
        said = r"q is float\d\d on cuda:0; .* and float16: cast q, k and v to one of them, .* or compute on the CPU"
        with pytest.raises(NotImplementedError, match=said):
            flashmask.attention(*(t.to(dtype) for t in (q, k, v)))
    with pytest.raises(ValueError, match="k is on cpu; expected cuda:0, the device of q"):
        flashmask.attention(q, k.cpu(), v)
    with pytest.raises(ValueError, match="startend_row_indices is on cpu; expected cuda:0"):
        flashmask.flashmask_attention(q, k, v, rows, causal=True)
    with pytest.raises(ValueError, match="k is on cuda:0; expected cpu"):
        flashmask.attention(q.cpu(), k, v)
    with pytest.raises(ValueError, match="mask has 5 rows; expected 64, the tokens of q"):
        flashmask.attention(q, k, v, masks.causal(5, 64))
    with pytest.raises(ValueError, match="startend_row_indices has 65 columns; expected 64"):
        flashmask.flashmask_attention(q, k, v, rows.new_zeros(1, 1, 65, 1).cuda(), causal=True)
    with pytest.raises(ValueError, match=r"packed mask on cuda:0; leave Mask\.tensor on the CPU"):
        torch.ops.flashmask.forward(q, k, v, masks.causal(64, 64).tensor.cuda(), None, False, 0.0, 0.0, None)


@pytest.mark.parametrize("shape", [(300, 280), (4, 300, 280), (2, 1, 300, 280), (2, 2, 300, 280)], ids=str)
def test_booleans_are_read_where_they_lie(shape):
    seen = torch.rand(shape) < 0.2
    seen[..., 40:80, :] = False
    given = inputs(2, 300, 280, 4, 2, 64)
    expected = seen[(None,) * (4 - seen.ndim)]
    found = check(attend(seen.cuda()), given, expected)
    on_host = check(attend(seen), given, expected)
    apart = seen.cuda().transpose(-1, -2).contiguous().transpose(-1, -2)
    for other in (on_host, attend(apart)(*given[:3])):
        assert all(torch.equal(a, b) for a, b in zip(found, other, strict=True))


@pytest.mark.parametrize("dims", [2, 3, 4])
def test_booleans_of_one_tensor_take_one_plan(dims, monkeypatch):
    from flashmask._torch.plans import device_plans

    made = []
    make = device_plans.plan_of_booleans
    monkeypatch.setattr(device_plans, "plan_of_booleans", lambda *given: made.append(1) or make(*given))
    q, k, v, *_ = inputs(1, 200, 200, 2, 1, 64)
    seen = torch.ones((1,) * (dims - 2) + (200, 200), dtype=torch.bool, device="cuda").tril()
    first = flashmask.attention(q, k, v, seen)
    assert torch.equal(flashmask.attention(q, k, v, seen), first)
    assert len(made) == 1
    seen[..., 100:, 0] = False
    assert not torch.equal(flashmask.attention(q, k, v, seen), first)
    assert len(made) == 2


def test_booleans_may_change_in_place():
    q, k, v, *_ = inputs(1, 200, 200, 2, 1, 64)
    seen = causal_rows(200).cuda()
    for shift in (0, 1, 5):
        seen.copy_(torch.ones_like(seen).tril(-shift))
        expected = flashmask.attention(q, k, v, masks.from_dense(seen.cpu()))
        torch.testing.assert_close(flashmask.attention(q, k, v, seen), expected, atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("of_rows", [(1, 1), (2, 1), (1, 2), (2, 4), None], ids=str)
@pytest.mark.parametrize("of_blocks", [(1, 1), (2, 1), (1, 2), (2, 4)], ids=str)
@pytest.mark.parametrize("gradients", [False, True], ids=["forward", "and backward"])
def test_block_masks_beside_row_indices_and_alone(of_rows, of_blocks, gradients):
    tokens = 400
    keep = (torch.rand(*of_blocks, 4, 4) < 0.6).to(torch.int32)
    seen = keep.bool().repeat_interleave(128, 2).repeat_interleave(128, 3)[:, :, :tokens, :tokens]
    seen = seen.repeat_interleave(4 // of_blocks[1], 1).expand(2, 4, tokens, tokens)
    rows = None
    if of_rows is not None:
        rows = torch.randint(tokens, (*of_rows, tokens, 1), dtype=torch.int32)
        says = visible(masks.from_startend_row_indices(rows, causal=True))
        seen = seen & says.repeat_interleave(4 // of_rows[1], 1)

    def compute(q, k, v):
        return flashmask.flashmask_attention(
            q, k, v, None if rows is None else rows.cuda(), causal=rows is not None, block_mask=keep.cuda(),
            return_softmax_lse=True,
        )  # fmt: skip

    check(compute, inputs(2, tokens, tokens, 4, 2, 64), seen, gradients=gradients)


def test_a_block_mask_may_change_in_place():
    q, k, v, *_ = inputs(1, 256, 256, 2, 1, 64)
    rows = torch.full((1, 1, 256, 1), 200, dtype=torch.int32, device="cuda")
    keep = torch.ones(1, 1, 2, 2, dtype=torch.int32, device="cuda")

    def compute(rows, keep):
        return flashmask.flashmask_attention(q, k, v, rows, causal=True, block_mask=keep)

    first = compute(rows, keep)
    keep[0, 0, 1, 0] = 0
    second = compute(rows, keep)
    assert not torch.equal(first, second)
    assert torch.equal(second, compute(rows.clone(), keep.clone()))
    with pytest.raises(NotImplementedError, match="block_mask beside a packed mask"):
        torch.ops.flashmask.forward(q, k, v, masks.causal(256, 256).tensor, keep, False, 0.0, 0.0, None)
