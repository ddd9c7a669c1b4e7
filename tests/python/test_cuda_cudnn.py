# SPDX-License-Identifier: Apache-2.0
"""backend="cudnn" on a GPU: NVIDIA's cudnn.flex_attention behind this library's calls, against float64 and ours."""

import pytest
import torch
from cuda_device import check, inputs, why_not
from mask_families import FAMILIES, visible

if why_not():
    pytest.skip(why_not(), allow_module_level=True)
pytest.importorskip("cudnn.flex_attention", reason="pip install 'nvidia-cudnn-frontend[cutedsl]>=1.32'")

import flashmask
from flashmask import masks
from flashmask._torch.plans import cudnn_plan, device_plans

if torch.cuda.get_device_capability() not in cudnn_plan._CAPABILITIES:
    pytest.skip("cudnn.flex_attention has no kernels for this GPU", allow_module_level=True)


def hold(mask, dtype=torch.bfloat16, said=None, dim=64, value_dim=64):
    """o, lse and the gradients of q, k and v are as near to float64 as the dtype's naive computation is."""
    given = inputs(2, mask.shape.rows, mask.shape.columns, 4, 2, dim, value_dim, dtype)

    def attend(q, k, v):
        return flashmask.attention(q, k, v, mask if said is None else said, backend="cudnn", return_lse=True)

    return check(attend, given, visible(mask).bool(), gradients=True)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_every_family_has_the_results_of_float64(family, dtype):
    hold(FAMILIES[family](), dtype)


@pytest.mark.parametrize(("dim", "value_dim"), [(128, 128), (256, 256), (32, 80), (192, 128)])
def test_head_dims_have_the_results_of_float64_or_are_refused_by_name(dim, value_dim):
    """The last two have no backward on an H100."""
    try:
        hold(masks.causal_document([100, 0, 150, 30], 300), dim=dim, value_dim=value_dim)
    except NotImplementedError as refusal:
        assert dim != value_dim
        assert 'backend="cudnn" was asked for, and SM90 arbitrary backward only supports' in str(refusal)


def test_every_kind_of_mask_is_taken():
    mask = masks.causal_document([100, 150], 300)
    rows = masks.from_cu_seqlens(torch.tensor([0, 100, 250], device="cuda"), 300)
    of_mask = hold(mask)
    for said in (rows, torch.from_numpy(mask.to_dense()).bool().cuda()):
        for one, other in zip(of_mask, hold(mask, said=said), strict=True):
            torch.testing.assert_close(one, other)


def test_it_is_nvidias_kernels_that_compute_and_their_plan_is_kept(monkeypatch):
    made = []
    monkeypatch.setattr(
        device_plans, "cudnn_plan", lambda *given: made.append(cudnn_plan.cudnn_plan(*given)) or made[-1]
    )
    mask = masks.causal(256)
    rows = masks.from_cu_seqlens(torch.tensor([0, 100, 256], device="cuda"), 256)
    q = torch.randn(1, 256, 4, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    for said in (mask, rows):
        made.clear()
        for _ in range(3):
            flashmask.attention(q, q, q, said, backend="cudnn").sum().backward()
        assert [type(each).__name__ for each in made] == ["CudnnPlan"]


def test_deterministic_gradients_are_the_same_bits():
    mask = masks.causal_document([700, 900, 448])
    q, k, v = (torch.randn(1, 2048, 4, 128, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    found = []
    for _ in range(4):
        o = flashmask.attention(q, k, v, mask, backend="cudnn", deterministic=True)
        found.append(torch.autograd.grad(o.float().square().sum(), (q, k, v)))
    for other in found[1:]:
        assert all(map(torch.equal, found[0], other))


def test_row_indices_and_lengths_take_it():
    q, k, v = (torch.randn(1, 300, 4, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    ends = torch.tensor([0, 100, 300], device="cuda", dtype=torch.int32)
    rows = masks.from_cu_seqlens(ends, 300)
    expected = flashmask.attention(q, k, v, rows, backend="flashmask")
    found = flashmask.flashmask_attention(q, k, v, rows.startend_row_indices, causal=True, backend="cudnn")
    torch.testing.assert_close(found, expected, atol=2e-2, rtol=2e-2)
    found = flashmask.varlen_attention(q[0], k[0], v[0], ends, ends, causal=True, backend="cudnn")
    torch.testing.assert_close(found, expected[0], atol=2e-2, rtol=2e-2)


def test_a_compiled_function_sees_one_operator():
    rows = masks.from_cu_seqlens(torch.tensor([0, 100, 300], device="cuda"), 300)
    q = torch.randn(1, 300, 4, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)

    def attend(q, said):
        return flashmask.attention(q, q, q, flashmask.RowIndices(said, True), backend="cudnn")

    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
    expected, found = attend(q, rows.startend_row_indices), compiled(q, rows.startend_row_indices)
    torch.testing.assert_close(found, expected)
    one, other = (torch.autograd.grad(each.sum(), q)[0] for each in (expected, found))
    torch.testing.assert_close(one, other)


def test_the_environment_sends_calls_there_that_it_serves(monkeypatch):
    monkeypatch.setenv("FLASHMASK_BACKEND", "cudnn")
    cudnn_plan._is_preferred.cache_clear()
    made = []
    monkeypatch.setattr(cudnn_plan.CudnnPlan, "forward", lambda *given: made.append(given) or forward(*given))
    q = torch.randn(1, 130, 4, 64, device="cuda", dtype=torch.bfloat16)
    with pytest.warns(UserWarning, match="runs attention through cudnn.flex_attention"):
        flashmask.attention(q, q, q, masks.causal(130))
    assert len(made) == 1
    flashmask.attention(q, q, q, masks.causal(130), sinks=torch.zeros(4, device="cuda"))
    flashmask.flashmask_attention(q, q, q, causal=True, dropout=0.1)
    flashmask.attention(q, q, q, masks.causal(130), backend="flashmask")
    flashmask.attention(q, q, q, plan=flashmask.plan(masks.causal(130), q, q, q))
    assert len(made) == 1
    cudnn_plan._is_preferred.cache_clear()


forward = cudnn_plan.CudnnPlan.forward


def test_what_it_lacks_is_refused_by_name():
    q = torch.randn(1, 130, 4, 64, device="cuda", dtype=torch.bfloat16)
    with pytest.raises(NotImplementedError, match="sinks is given, which it has not"):
        flashmask.attention(q, q, q, sinks=torch.zeros(4, device="cuda"), backend="cudnn")
    with pytest.raises(NotImplementedError, match="it computes bfloat16 and float16"):
        flashmask.attention(q.float(), q.float(), q.float(), backend="cudnn")


def test_a_graph_runs_a_plan_that_was_made_before_and_refuses_to_make_one():
    q = torch.randn(1, 256, 4, 64, device="cuda", dtype=torch.bfloat16)
    mask = masks.causal_document([100, 156])
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        expected = flashmask.attention(q, q, q, mask, backend="cudnn")
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = flashmask.attention(q, q, q, mask, backend="cudnn")
    graph.replay()
    assert torch.equal(found, expected)
    with (
        pytest.raises(NotImplementedError, match="a CUDA graph is being captured"),
        torch.cuda.graph(torch.cuda.CUDAGraph()),
    ):
        flashmask.attention(q, q, q, masks.causal_document([90, 166]), backend="cudnn")
