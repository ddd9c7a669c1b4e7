# SPDX-License-Identifier: Apache-2.0
"""CUDA tensors with the rest of PyTorch: opcheck, compile, autocast, checkpointing, Transformers."""

import pytest
import torch
from cuda_device import inputs, needs_gpu
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils.checkpoint import checkpoint

import flashmask
import flashmask.operators
from flashmask import masks

pytestmark = needs_gpu
N = 200
LENGTHS = (200, 264, 328)


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def three(tokens=N, seed=0):
    return inputs(1, tokens, tokens, 4, 2, 64, seed=seed)[:3]


def rows_of(cut, tokens=N):
    ends = torch.tensor([0, cut, tokens], device="cuda")
    return masks.from_cu_seqlens(ends, tokens).startend_row_indices


def assert_close(found, expected):
    """Of gradients, whose parts are added in any order unless they are deterministic."""
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("kind", ["none", "causal", "mask", "row indices"])
def test_opcheck_passes(kind):
    mask = {"mask": masks.causal_document([90, 110]).tensor, "row indices": rows_of(90)}.get(kind)
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(
        torch.ops.flashmask.forward.default,
        (*three(), mask, None, kind in ("causal", "row indices"), 0.3, 0.0, None),
        test_utils=tests,
    )
    torch.library.opcheck(torch.ops.flashmask.snapshot.default, (rows_of(90),), test_utils=tests)


@pytest.mark.parametrize("deterministic", [False, True])
def test_opcheck_passes_with_gradients(deterministic):
    q, k, v = (t.requires_grad_() for t in three())
    rest = (rows_of(90), None, True, 0.3, 0.0, None, deterministic)
    torch.library.opcheck(torch.ops.flashmask.forward.default, (q, k, v, *rest))
    o, lse = (t.detach() for t in torch.ops.flashmask.forward(q, k, v, *rest))
    saved = [t.detach() for t in (q, k, v)]
    torch.library.opcheck(torch.ops.flashmask.backward.default, (o, torch.ones_like(lse), *saved, o, lse, *rest))


CALLS = {
    "a mask": (
        lambda q, k, v, given: flashmask.attention(q, k, v, given).sin(),
        lambda tokens: masks.causal_document([tokens // 3, tokens - tokens // 3]),
    ),
    "no mask": (lambda q, k, v, _: flashmask.attention(q, k, v), lambda tokens: None),
    "row indices": (
        lambda q, k, v, given: flashmask.flashmask_attention(q, k, v, given, causal=True),
        lambda tokens: rows_of(tokens // 3, tokens),
    ),
    "ends of documents": (
        lambda q, k, v, given: flashmask.attention(q, k, v, masks.from_cu_seqlens(given, q.shape[1])),
        lambda tokens: torch.tensor([0, tokens // 3, tokens], device="cuda"),
    ),
    "booleans": (
        lambda q, k, v, given: flashmask.attention(q, k, v, given) * 2,
        lambda tokens: torch.ones(tokens, tokens, dtype=torch.bool, device="cuda").tril(),
    ),
    "varlen": (
        lambda q, k, v, given: flashmask.varlen_attention(q[0], k[0], v[0], given, given, causal=True),
        lambda tokens: torch.tensor([0, tokens // 3, tokens], device="cuda"),
    ),
}


@pytest.mark.parametrize("kind", CALLS)
@pytest.mark.parametrize("gradients", [False, True])
def test_compiles_once_for_all_lengths(kind, gradients):
    function, argument = CALLS[kind]
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(function, fullgraph=True, backend=counter)
    for tokens in LENGTHS:
        given = [t.requires_grad_(gradients) for t in three(tokens)]
        mask = argument(tokens)
        results = []
        for each in (function, compiled):
            o = each(*given, mask)
            results.append([o, *(torch.autograd.grad(o.float().sum(), given) if gradients else ())])
        for a, b in zip(*results, strict=True):
            torch.testing.assert_close(a, b, atol=1e-2, rtol=1e-2)
    assert counter.frame_count <= 2


def layers_of_many_kinds(q, k, v, cut):
    """Row indices that the compiler computes one after another, in memory that it may take again."""
    tokens = q.shape[1]
    position = torch.arange(tokens, device=q.device)
    o = q
    for step in (0, 40, 80, 120):
        end = cut + step
        rows = torch.where(position < end, end, tokens).to(torch.int32)[None, None, :, None]
        for _ in range(2):
            o = flashmask.flashmask_attention(o * 1.5, k, v, rows, causal=True)
    return o


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_inductor_may_take_memory_of_row_indices_again(mode):
    compiled = torch.compile(layers_of_many_kinds, fullgraph=True, mode=mode)
    for turn in range(4):
        q, k, v = three(seed=turn)
        cut = torch.tensor(20 + 7 * turn, device="cuda")
        with torch.no_grad():
            right = layers_of_many_kinds(q, k, v, cut)
            found = compiled(q, k, v, cut)
        torch.testing.assert_close(found, right, atol=2e-2, rtol=2e-2)


def test_layers_of_a_compiled_graph_that_trains_share_a_plan(monkeypatch):
    from flashmask._torch.plans import device_plans

    made = []
    make = device_plans.plan_of_rows
    monkeypatch.setattr(device_plans, "plan_of_rows", lambda *given: made.append(given) or make(*given))

    def layers(q, k, v, rows):
        o = q
        for _ in range(3):
            o = flashmask.flashmask_attention(o, k, v, rows, causal=True)
        return o

    compiled = torch.compile(layers, fullgraph=True)
    given = [t.requires_grad_() for t in three()]
    rows = rows_of(90)
    for _ in range(2):
        made.clear()
        compiled(*given, rows).float().sum().backward()
    assert len(made) == 1


def test_operators_share_no_plan_by_themselves():
    """What calls them may be compiled code that writes to row indices behind their version counter."""
    rows = rows_of(90)
    q, k, v = three()
    rest = (None, True, 0.0, 0.0, None)
    torch.ops.flashmask.forward(q, k, v, rows, *rest)
    rows.data.copy_(rows_of(150))
    found, _ = torch.ops.flashmask.forward(q, k, v, rows, *rest)
    assert torch.equal(found, flashmask.flashmask_attention(q, k, v, rows_of(150), causal=True))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast_casts_as_sdpa_does(dtype):
    q, k, v = (t.float() for t in three())
    mask = masks.causal(N, N)
    with torch.autocast("cuda", dtype=dtype):
        o = flashmask.attention(q, k, v, mask)
        plan = flashmask.plan(mask, q, k, v)
        assert torch.equal(flashmask.attention(q, k, v, plan=plan), o)
    assert o.dtype == dtype
    assert torch.equal(o, flashmask.attention(*(t.to(dtype) for t in (q, k, v)), mask))


@pytest.mark.parametrize("kind", ["mask", "row indices"])
@pytest.mark.parametrize("reentrant", [True, False])
def test_works_under_activation_checkpointing(kind, reentrant):
    mask = masks.causal_document([90, 110]) if kind == "mask" else flashmask.RowIndices(rows_of(90), True)

    def attend(q, k, v):
        return flashmask.attention(q, k, v, mask).sin()

    runs = []
    for wrap in (attend, lambda *given: checkpoint(attend, *given, use_reentrant=reentrant)):
        given = [t.requires_grad_() for t in three()]
        wrap(*given).float().sum().backward()
        runs.append([t.grad for t in given])
    assert_close(*runs)


def test_saved_tensors_may_wait_on_the_cpu():
    rows = flashmask.RowIndices(rows_of(90), True)
    runs = []
    for offload in (False, True):
        given = [t.requires_grad_() for t in three()]
        with torch.autograd.graph.save_on_cpu() if offload else torch.enable_grad():
            o = flashmask.attention(*given, rows)
        runs.append(torch.autograd.grad(o.float().sum(), given))
    assert_close(*runs)


def tiny_model():
    transformers = pytest.importorskip("transformers", reason="tests its integration")
    import flashmask.transformers

    flashmask.transformers.register()
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=128, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1,
    )  # fmt: skip
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(
        config, attn_implementation="flashmask", dtype=torch.bfloat16
    ).cuda()


@pytest.mark.parametrize("compiled", [False, True])
def test_packed_documents_of_a_model_are_each_document_alone(compiled):
    model = tiny_model().eval()
    lengths = (40, 70, 90)
    ids = torch.randint(64, (1, N), device="cuda")
    positions = torch.cat([torch.arange(n) for n in lengths])[None].cuda()
    call = torch.compile(model, fullgraph=True, backend="aot_eager") if compiled else model
    with torch.no_grad():
        packed = call(ids, position_ids=positions, use_cache=False).logits
        alone = [model(part, use_cache=False).logits for part in ids.split(lengths, dim=1)]
    torch.testing.assert_close(packed, torch.cat(alone, dim=1), atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("way", ["booleans", "startend_row_indices"])
def test_a_model_takes_masks_that_lie_on_the_device(way):
    model = tiny_model().eval()
    ids = torch.randint(64, (1, N), device="cuda")
    positions = torch.cat([torch.arange(90), torch.arange(110)])[None].cuda()
    rows = rows_of(90)
    seen = torch.from_numpy(flashmask.RowIndices(rows, True).to_dense()).cuda()
    given = {"attention_mask": seen} if way == "booleans" else {way: rows}
    with torch.no_grad():
        expected = model(ids, position_ids=positions, use_cache=False).logits
        found = model(ids, position_ids=positions, use_cache=False, **given).logits
    torch.testing.assert_close(found, expected, atol=3e-2, rtol=3e-2)


def test_a_model_trains_on_packed_documents():
    model = tiny_model().train()
    lengths = (40, 70, 90)
    ids = torch.randint(64, (1, N), device="cuda")
    positions = torch.cat([torch.arange(n) for n in lengths])[None].cuda()

    def gradients(logits):
        model.zero_grad()
        logits.float().square().sum().backward()
        return [p.grad.clone() for p in model.parameters()]

    packed = gradients(model(ids, position_ids=positions, use_cache=False).logits)
    alone = gradients(torch.cat([model(part, use_cache=False).logits for part in ids.split(lengths, dim=1)], dim=1))
    for a, b in zip(packed, alone, strict=True):
        assert (a - b).norm() <= 0.05 * b.norm()
