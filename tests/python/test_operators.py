# SPDX-License-Identifier: Apache-2.0
"""The operators as PyTorch sees them: opcheck, autograd, autocast, vmap, checkpointing, hooks, threads, processes."""

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
import torch
from attention_oracle import random_inputs, softmax_attention
from mask_families import FAMILIES, N, visible
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import flashmask
import flashmask.operators
from flashmask import masks
from flashmask._abi.header import Options, header, read_header
from flashmask._abi.problem import make_problem
from flashmask._plans.call import Call, arguments_of_backward
from flashmask._torch.dropout import pack_place

pytestmark = pytest.mark.kernels

forward = torch.ops.flashmask.forward.default
backward = torch.ops.flashmask.backward.default
SEED = torch.tensor([11, 3])


def leaves(dtype=torch.float32, tokens=N):
    return [t.to(dtype).requires_grad_() for t in random_inputs(2, tokens, tokens, 4, 2, 16, 8)[:3]]


def operator_masks():
    rows = torch.full((1, 2, N, 1), N, dtype=torch.int32)
    rows[:, 0, :30] = 30
    blocks = torch.ones(1, 1, 1, 1, dtype=torch.int32)
    return {
        "none": (None, None, False),
        "causal": (None, None, True),
        "intervals": (FAMILIES["document"]().tensor, None, False),
        "bits": (FAMILIES["graph"]().tensor, None, False),
        "row indices": (rows, None, True),
        "blocks": (rows, blocks, True),
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "dtype"),
    [*((name, torch.float32) for name in operator_masks()), ("bits", torch.bfloat16), ("intervals", torch.float64)],
)
def test_opcheck_passes(name, dtype):
    mask, blocks, causal = operator_masks()[name]
    q, k, v = leaves(dtype)
    for p, seed in ((0.0, None), (0.25, SEED)):
        torch.library.opcheck(forward, (q, k, v, mask, blocks, causal, 0.3, p, seed))
    o, lse = (t.detach() for t in forward(q, k, v, mask, blocks, causal, 0.3, 0.25, SEED))
    values = [t.detach() for t in (q, k, v)]
    for grad_lse in (None, torch.ones_like(lse)):
        torch.library.opcheck(backward, (o, grad_lse, *values, o, lse, mask, blocks, causal, 0.3, 0.25, SEED))


@pytest.mark.parametrize("name", ["causal_document", "graph"])
def test_gradients_with_dropout_are_those_of_finite_differences(name):
    seen = visible(FAMILIES[name]())[:, :, :6, :7].clone()
    seen[..., 0] = True
    mask = masks.from_dense(seen)
    q, k, v = (t.double().requires_grad_() for t in random_inputs(1, 6, 7, 2, 1, 3, 2)[:3])
    assert torch.autograd.gradcheck(
        lambda *t: forward(*t, mask.tensor, None, False, 0.0, 0.3, SEED), (q, k, v), check_undefined_grad=False
    )


def test_a_packed_mask_from_elsewhere_is_unpacked(tmp_path):
    from flashmask._plans.cache import plans

    mask = FAMILIES["random_dense_heads_and_batch"]()
    q, k, v = leaves()
    expected = flashmask.attention(q, k, v, mask)
    torch.save(mask.tensor, tmp_path / "mask.pt")
    tensor = torch.load(tmp_path / "mask.pt")
    plans.clear()
    assert torch.equal(forward(q, k, v, tensor, None, False, 0.0, 0.0, None)[0], expected)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((torch.zeros(500, dtype=torch.uint8), None, False, 0.0, 0.0, None), "does not hold a packed mask"),
        ((torch.zeros(3, dtype=torch.uint8), None, False, 0.0, 0.0, None), "does not hold a packed mask"),
        ((masks.causal(N, N).tensor, None, True, 0.0, 0.0, None), "causal is True beside a packed mask"),
        ((torch.zeros(1, 1, N, 3, dtype=torch.int32), None, True, 0.0, 0.0, None), "n = 3 vectors"),
        ((None, None, True, 0.0, 0.5, None), "seed_offset is None; expected int64"),
        ((None, None, True, 0.0, 0.5, torch.tensor([0, 2**32])), "offset 4294967296; expected one in"),
        ((None, None, True, 0.0, 1.5, SEED), "dropout is 1.5"),
        (
            (None, torch.ones(1, 1, 2, 1, dtype=torch.int32), True, 0.0, 0.0, None),
            r"block_mask has shape \[1, 1, 2, 1\]",
        ),
        ((None, torch.full((1, 1, 1, 1), 2, dtype=torch.int32), True, 0.0, 0.0, None), "other values than 0 and 1"),
    ],
)
def test_the_operator_refuses_what_it_cannot_read(arguments, message):
    with pytest.raises(ValueError, match=message):
        forward(*leaves(), *arguments)


def test_the_backward_operator_refuses_what_is_not_of_its_forward():
    q, k, v = (t.detach() for t in leaves())
    o, lse = forward(q, k, v, None, None, True, 0.0, 0.0, None)
    rest = (None, None, True, 0.0, 0.0, None)
    with pytest.raises(ValueError, match=r"grad_o is torch.float32 \[1, 70, 4, 8\]; expected"):
        backward(o[:1], None, q, k, v, o, lse, *rest)
    with pytest.raises(ValueError, match=r"grad_lse is torch.float64 \[2, 4, 70\]; expected torch.float32"):
        backward(o, lse.double(), q, k, v, o, lse, *rest)


@pytest.mark.parametrize("cast", [torch.bfloat16, torch.float16])
def test_autocast_casts_as_sdpa_does(cast):
    q, k, v = leaves()
    mask = masks.causal(N, N)
    with torch.autocast("cpu", dtype=cast):
        o, lse = flashmask.attention(q, k, v, mask, return_lse=True)
        double = flashmask.attention(*(t.double() for t in (q, k, v)), mask)
        sdpa = torch.nn.functional.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, q, q)))
        plan = flashmask.plan(mask, q, k, v)
        assert torch.equal(flashmask.attention(q, k, v, plan=plan), o)
    assert o.dtype == sdpa.dtype == cast
    assert lse.dtype == torch.float32
    assert double.dtype == torch.float64
    assert torch.equal(o, flashmask.attention(*(t.to(cast) for t in (q, k, v)), mask))
    gradients = torch.autograd.grad(o.float().sum(), (q, k, v))
    assert all(gradient.dtype == torch.float32 for gradient in gradients)


def test_vmap_is_refused_clearly():
    q, k, v = (torch.stack([t.detach()] * 3) for t in leaves())
    with pytest.raises(NotImplementedError, match=r"does not support torch\.func\.vmap; pass the mapped dimension"):
        torch.func.vmap(flashmask.attention)(q, k, v)


def test_other_function_transforms_are_refused_clearly():
    q, k, v = (t.detach() for t in leaves())
    with pytest.raises(NotImplementedError, match=r"does not support torch\.func\.grad"):
        torch.func.grad(lambda q: flashmask.attention(q, k, v).sum())(q)
    cu = torch.tensor([0, 30, N])
    for given in (cu, cu.int()):
        with pytest.raises(NotImplementedError, match=r"does not support torch\.func\.grad"):
            torch.func.grad(lambda q, given=given: flashmask.varlen_attention(q, k[0], v[0], given, given).sum())(q[0])


def test_masks_and_plans_serve_traces_and_calls_wherever_they_were_made():
    q, k, v = (t.detach() for t in leaves())
    made = [{"mask": masks.causal(N, N)}, {"plan": flashmask.plan(masks.causal(N, N), q, k, v)}]
    with FakeTensorMode() as mode:
        fake = [mode.from_tensor(t) for t in (q, k, v)]
        made += [{"mask": masks.document([30, N - 30])}, {"plan": flashmask.plan(masks.causal(N, N), *fake)}]
        for given in [*made, {"mask": torch.ones(N, N, dtype=torch.bool)}]:
            assert flashmask.attention(*fake, **given).shape == (2, N, 4, 8)

    def attend(q, mask=None):
        made.append({"mask": masks.full(N, N)})
        return flashmask.attention(q, k, v, made[-1]["mask"] if mask is None else mask).sum()

    for given in ((), (torch.ones(N, N, dtype=torch.bool),)):
        with pytest.raises(NotImplementedError, match=r"does not support torch\.func\.grad"):
            torch.func.grad(attend)(q, *given)
    for given in made:
        mask = given["plan"].mask if "plan" in given else given["mask"]
        alone = flashmask.attention(q, k, v, torch.from_numpy(mask.to_dense()))
        assert torch.equal(flashmask.attention(q, k, v, **given), alone)


FLOPS = {
    "no mask": (None, N * N),
    "a mask": (masks.causal(N, N), N * (N + 1) // 2),
    "a mask of heads": (masks.stack_heads([masks.causal(N, N), masks.full(N, N)]), (N * (N + 1) // 2 + N * N) / 2),
    "row indices": (masks.from_cu_seqlens(torch.tensor([0, 30, N]), N), 30 * 31 // 2 + (N - 30) * (N - 29) // 2),
    "booleans": (torch.ones(N, N, dtype=torch.bool).tril(-1), N * (N - 1) // 2),
}


@pytest.mark.parametrize("name", FLOPS)
def test_flops_are_those_of_visible_pairs(name):
    mask, pairs = FLOPS[name]
    q, k, v = leaves()
    pairs *= 2 * 4  # of two batch entries and four query heads
    with FlopCounterMode(display=False) as forward_only:
        o = flashmask.attention(q, k, v, mask)
    assert forward_only.get_total_flops() == 2 * pairs * (16 + 8)
    with FlopCounterMode(display=False) as backward_only:
        o.sum().backward()
    assert backward_only.get_total_flops() == 2 * pairs * (3 * 16 + 2 * 8)


def test_flops_are_counted_with_sinks_biases_lengths_and_without_values():
    q, k, v = leaves()
    for given in ({"sinks": torch.zeros(4, requires_grad=True)}, {"bias": torch.zeros(1, 1, 1, N, requires_grad=True)}):
        with FlopCounterMode(display=False) as counter:
            flashmask.attention(q, k, v, masks.causal(N, N), **given).sum().backward()
        assert counter.get_total_flops() == 2 * 8 * (N * (N + 1) // 2) * (4 * 16 + 3 * 8)
    cu = torch.tensor([0, 30, N])
    with FlopCounterMode(display=False) as counter:
        flashmask.varlen_attention(q[0], k[0], v[0], cu, cu)
    assert counter.get_total_flops() == 2 * 4 * (30**2 + (N - 30) ** 2) * (16 + 8)
    with FakeTensorMode() as mode, FlopCounterMode(display=False) as counter:
        flashmask.attention(*map(mode.from_tensor, (q, k, v)), masks.from_cu_seqlens(mode.from_tensor(cu), N))
    assert counter.get_total_flops() == 2 * 8 * N * N * (16 + 8)


def test_flops_of_linear_attention_are_those_of_its_recurrence():
    q, k, v = leaves()
    with FlopCounterMode(display=False) as counter:
        o = flashmask.linear_attention(q[:, :, :2], k, v)
    assert counter.get_total_flops() == 2 * N * 2 * (2 + 2) * 16 * 8
    with FlopCounterMode(display=False) as counter:
        o.sum().backward()
    assert counter.get_total_flops() == 2 * N * 2 * (5 * 2) * 16 * 8


def test_flops_of_the_first_call_of_a_program_are_counted():
    code = (
        "import torch, flashmask; from torch.utils.flop_counter import FlopCounterMode\n"
        "q = torch.randn(1, 9, 1, 8)\n"
        "with FlopCounterMode(display=False) as counter: flashmask.attention(q, q, q)\n"
        "assert counter.get_total_flops() == 2 * 81 * 16, counter.get_total_flops()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_second_derivative_is_refused_clearly():
    q, k, v = leaves()
    (first,) = torch.autograd.grad(flashmask.attention(q, k, v).square().sum(), q, create_graph=True)
    with pytest.raises(NotImplementedError, match="a gradient of a gradient was asked for"):
        first.sum().backward()


def run(compute, grad):
    inputs = leaves()
    o = compute(*inputs)
    return [o.detach(), *torch.autograd.grad(o, inputs, grad(o))]


@pytest.mark.parametrize("kind", ["mask", "plan", "row indices"])
@pytest.mark.parametrize("reentrant", [True, False])
def test_works_under_activation_checkpointing(kind, reentrant):
    mask = FAMILIES["causal_document"]()
    plan = flashmask.plan(mask, *leaves()) if kind == "plan" else None
    given = masks.from_cu_seqlens(torch.tensor([0, 31, 31, 51]), N) if kind == "row indices" else mask

    def attend(q, k, v):
        return flashmask.attention(q, k, v, plan=plan) if plan else flashmask.attention(q, k, v, given)

    expected = run(attend, torch.ones_like)
    inputs = leaves()
    o = checkpoint(attend, *inputs, use_reentrant=reentrant)
    o.backward(torch.ones_like(o))
    for a, b in zip([o, *(t.grad for t in inputs)], expected, strict=True):
        assert torch.equal(a, b)


def test_dropout_repeats_under_activation_checkpointing():
    torch.manual_seed(0)
    inputs = leaves()

    def attend(q, k, v):
        return flashmask.flashmask_attention(q, k, v, causal=True, dropout=0.4)

    o = checkpoint(attend, *inputs, use_reentrant=False)
    o.backward(torch.ones_like(o))
    torch.manual_seed(0)
    assert torch.equal(attend(*inputs), o)
    torch.manual_seed(0)
    expected = torch.autograd.grad(attend(*inputs).sum(), inputs)
    for a, b in zip(inputs, expected, strict=True):
        assert torch.equal(a.grad, b)


def test_selective_checkpointing_can_name_the_operator():
    from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

    calls = []

    def policy(context, operator, *arguments, **keywords):
        if operator is forward:
            calls.append(context.is_recompute)
            return CheckpointPolicy.MUST_SAVE
        return CheckpointPolicy.PREFER_RECOMPUTE

    inputs = leaves()
    o = checkpoint(
        lambda q, k, v: flashmask.attention(q * 1, k, v).sin(),
        *inputs,
        use_reentrant=False,
        context_fn=lambda: create_selective_checkpoint_contexts(policy),
    )
    o.sum().backward()
    assert False in calls


def test_saved_tensor_hooks_see_and_move_what_is_saved():
    mask = FAMILIES["graph"]()

    def attend(q, k, v):
        return flashmask.attention(q, k, v, mask)

    expected = run(attend, torch.ones_like)
    packed = []

    def pack(tensor):
        packed.append(tensor.dtype)
        return tensor.clone()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        hooked = run(attend, torch.ones_like)
    with torch.autograd.graph.save_on_cpu():
        on_cpu = run(attend, torch.ones_like)
    assert torch.uint8 in packed
    for a, b, c in zip(expected, hooked, on_cpu, strict=True):
        assert torch.equal(a, b)
        assert torch.equal(a, c)


def test_honours_deterministic_algorithms():
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        first, second = (run(lambda *t: flashmask.attention(*t, masks.causal(N, N)), torch.ones_like) for _ in range(2))
    finally:
        torch.use_deterministic_algorithms(before)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = torch.nn.Linear(32, 96)
        self.out = torch.nn.Linear(32, 32)

    def forward(self, x, mask=None, plan=None):
        q, k, v = self.qkv(x).unflatten(-1, (3, 4, 8)).unbind(2)
        return self.out(flashmask.attention(q, k, v, mask, plan=plan).flatten(2))


def test_trains_under_ddp(tmp_path):
    import torch.distributed as dist

    torch.manual_seed(0)
    block = Block()
    x = torch.randn(2, N, 32)
    mask = FAMILIES["causal_document"]()
    block(x, mask).square().sum().backward()
    expected = [p.grad.clone() for p in block.parameters()]
    block.zero_grad()
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    try:
        parallel = torch.nn.parallel.DistributedDataParallel(block)
        parallel(x, mask).square().sum().backward()
        # Gloo's thread wants Python's lock to let go of the last exchange; who frees the group holds it and waits.
        time.sleep(0.5)
    finally:
        dist.destroy_process_group()
    for p, grad in zip(block.parameters(), expected, strict=True):
        torch.testing.assert_close(p.grad, grad)


def test_several_threads_run_forward_and_backward_at_once():
    mask = FAMILIES["causal_document"]()

    def attend(q, k, v):
        return flashmask.attention(q, k, v, mask)

    expected = run(attend, torch.ones_like)

    def work(_):
        return all(torch.equal(a, b) for a, b in zip(run(attend, torch.ones_like), expected, strict=True))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(80)))


def test_the_pool_follows_torch(monkeypatch):
    from flashmask._torch import cpu

    counts = []
    monkeypatch.setattr(cpu.library, "flashmask_set_thread_count", counts.append)
    monkeypatch.setattr(cpu, "_threads", 0)
    before = torch.get_num_threads()
    try:
        for threads in (1, 1, 2):
            torch.set_num_threads(threads)
            flashmask.attention(*leaves())
    finally:
        torch.set_num_threads(before)
        monkeypatch.undo()
        cpu._threads = 0
    assert counts == [1, 2]


class Attended(torch.utils.data.Dataset):
    """Items whose making runs attention in the loader's worker."""

    def __init__(self, mask):
        self.mask = mask

    def __len__(self):
        return 4

    def __getitem__(self, item):
        q, k, v = (t.detach() for t in leaves())
        return flashmask.attention(q + item, k, v, self.mask)


def test_data_loader_workers_run_it():
    data = Attended(FAMILIES["causal_document"]())
    flashmask.attention(*leaves(tokens=300))  # the parent's pool has started
    loader = torch.utils.data.DataLoader(data, batch_size=None, num_workers=2, multiprocessing_context="fork")
    for item, found in enumerate(loader):
        assert torch.equal(found, data[item])


FORKS = """
import os, sys, torch, flashmask
torch.set_num_threads(2)
q = torch.ones(1, 600, 4, 16)
expected = flashmask.attention(q, q, q).tolist()
child = os.fork()
if child == 0:
    sys.exit(0 if flashmask.attention(q, q, q).tolist() == expected else 1)
sys.exit(os.waitpid(child, 0)[1])
"""


@pytest.mark.slow
def test_a_forked_child_runs_it_and_ends():
    subprocess.run([sys.executable, "-c", FORKS], check=True, timeout=60)


def test_the_formula_is_what_the_operator_computes():
    q, k, v = leaves()
    o, lse = forward(q, k, v, None, None, True, 0.0, 0.0, None)
    seen = torch.ones(N, N, dtype=torch.bool).tril()[None, None]
    expected, expected_lse = softmax_attention(q.double(), k.double(), v.double(), seen)
    torch.testing.assert_close(o.double(), expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(lse.double(), expected_lse, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("sinks", [None, torch.tensor([0.5, -1.0, 2.0, 0.0])], ids=["no sinks", "sinks"])
def test_gradients_of_keys_in_float32_round_to_those_of_the_dtype(dtype, sinks):
    q, k, v = (t.detach() for t in leaves(dtype))
    call = (FAMILIES["document"]().tensor, None, False, 0.3, 0.25, SEED, False)
    o, lse = forward(q, k, v, *call, sinks)
    operator = backward if sinks is None else torch.ops.flashmask.backward_with_sinks.default
    given = (o, torch.ones_like(lse), q, k, v, o, lse, *(() if sinks is None else (sinks,)), *call)
    narrow, wide = operator(*given), operator(*given, float32_key_gradients=True)
    assert [t.dtype for t in wide[:3]] == [dtype, torch.float32, torch.float32]
    assert not torch.equal(wide[1], narrow[1].float())
    for exact, rounded in zip(wide, narrow, strict=True):
        assert torch.equal(exact.to(rounded.dtype), rounded)


def test_gradients_of_keys_in_float32_are_known_without_data():
    q, k, v = (t.detach().bfloat16() for t in leaves())
    o, lse = forward(q, k, v, None, None, True, 0.0, 0.0, None)
    given = (o, None, q, k, v, o, lse, None, None, True, 0.0, 0.0, None, False, None, True)
    torch.library.opcheck(backward, given)
    made = torch.compile(backward, fullgraph=True, backend="aot_eager")(*given)
    assert all(torch.equal(a, b) for a, b in zip(made, backward(*given), strict=True))


def test_gradients_of_keys_in_float32_are_those_of_float32_tensors_and_refused_beside_float64_ones():
    for dtype in (torch.float32, torch.float64):
        q, k, v = (t.detach().to(dtype) for t in leaves())
        o, lse = forward(q, k, v, None, None, True, 0.0, 0.0, None)
        given = (o, None, q, k, v, o, lse, None, None, True, 0.0, 0.0, None, False)
        wide = partial(backward, float32_key_gradients=True)
        if dtype is torch.float32:
            assert all(torch.equal(a, b) for a, b in zip(wide(*given), backward(*given), strict=True))
        else:
            with pytest.raises(TypeError, match=r"float32_key_gradients is True, and q has dtype torch\.float64"):
                wide(*given)


def test_gradients_of_keys_in_float32_are_refused_of_a_plan_that_reorders():
    q, k, v = (t.bfloat16() for t in random_inputs(1, 512, 512, 2, 1, 8, 8)[:3])
    place = torch.arange(512) * 37 % 512
    mask = masks.from_dense(((place[:, None] - place).abs() < 3)[None, None])
    tensor = flashmask.plan(mask, q, k, v, reorder=True).tensor
    o, lse = forward(q, k, v, tensor, None, False, 0.0, 0.0, None)
    given = (o, None, q, k, v, o, lse, tensor, None, False, 0.0, 0.0, None, False)
    backward(*given)
    with pytest.raises(NotImplementedError, match="the plan moves tokens; make the plan without `reorder`"):
        backward(*given, float32_key_gradients=True)


def test_headers_of_packed_masks_hold_every_option():
    options = Options(1, 2, 1, 1, "avx2.forward", 1, 2, 1, 0, 1)
    assert read_header(header(bytes(range(16)), options)) == (bytes(range(16)), options)
    assert read_header(header(bytes(16), Options(skip_key_gradients=1))) == (bytes(16), Options(skip_key_gradients=1))


def test_packed_masks_say_which_gradients_nobody_reads():
    """The others have their bits."""
    mask = masks.causal(200, 200)
    q, k, v, grad_o = (torch.randn(1, 200, 2, 16) for _ in range(4))
    o, lse = forward(q, k, v, *Call(mask.tensor))

    def gradients(**skipped):
        call = Call(torch.from_numpy(mask._packed(Options(**skipped))))
        return backward(grad_o, None, q, k, v, o, lse, *arguments_of_backward(call), False)

    every, keys, query = gradients(), gradients(skip_query_gradient=1), gradients(skip_key_gradients=1)
    assert all(map(torch.equal, keys[1:], every[1:]))
    assert torch.equal(query[0], every[0])


def eights(begin, end):
    return np.arange(begin // 8, end // 8, dtype=np.int32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_part_drops_what_the_whole_drops(dtype):
    """Rows 64 to 127, and heads 2 and 3 of four."""
    q, k, v = (t.to(dtype) for t in random_inputs(1, 128, 128, 4, 4, 8, 8)[:3])
    call = (None, None, False, 0.0, 0.5, SEED, False)
    o, lse = forward(q, k, v, *call)
    part = q[:, 64:, 2:], k[:, :, 2:], v[:, :, 2:]
    problem = make_problem([t.shape for t in part], "float32", None, 0.5)
    place = pack_place(problem, 2, 4, eights(64, 128), eights(0, 128))
    found, of_part = forward(*part, *call, None, place)
    torch.testing.assert_close(found, o[:, 64:, 2:], atol=1e-6, rtol=1e-6)
    assert not torch.allclose(forward(*part, *call)[0], found, atol=1e-3)
    grad = torch.randn_like(o)
    grad[:, :64] = 0  # rows of others
    dq, dk, dv = backward(grad, None, q, k, v, o, lse, *call)
    gradients = backward(grad[:, 64:, 2:], None, *part, found, of_part, *call, place)
    expected = dq[:, 64:, 2:], dk[:, :, 2:], dv[:, :, 2:]
    for each, whole in zip(gradients, expected, strict=True):
        torch.testing.assert_close(each, whole, atol=1e-5, rtol=1e-5)


def test_the_place_of_another_problem_is_refused():
    q, k, v = random_inputs(1, 128, 128, 4, 4, 8, 8)[:3]
    call = (None, None, False, 0.0, 0.5, SEED, False, None)
    with pytest.raises(ValueError, match=r"the dropout place has 5 numbers; expected 98, which pack\(\) gives"):
        forward(q, k, v, *call, torch.zeros(5, dtype=torch.int32))
    with pytest.raises(ValueError, match=r"dropout_place is torch.int64 \[98\] on cpu; expected int32 \[n\]"):
        forward(q, k, v, *call, torch.zeros(98, dtype=torch.int64))
