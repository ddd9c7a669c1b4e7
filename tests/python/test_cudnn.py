# SPDX-License-Identifier: Apache-2.0
"""backend="cudnn" without a GPU: what NVIDIA's kernels would be given, what is refused by name, and who is chosen.

test_cuda_cudnn.py holds the package itself against our kernels.
"""

import subprocess
import sys

import numpy as np
import pytest
import torch
from mask_families import FAMILIES, N
from test_row_ranges import expanded

import flashmask
from flashmask import masks
from flashmask._abi.problem import make_problem
from flashmask._backends import BY_NAME, OURS, WHERE_IT_SERVES, cudnn_of
from flashmask._plans.call import Call
from flashmask._torch.plans import cudnn_plan


def problem_of(mask=None, dtype="bfloat16", dims=(64, 64), batch=2, heads=4, kv_heads=2):
    rows, columns = (N, N) if mask is None else (mask.shape.rows, mask.shape.columns)
    shapes = ((batch, rows, heads, dims[0]), (batch, columns, kv_heads, dims[0]), (batch, columns, kv_heads, dims[1]))
    return make_problem(shapes, dtype, None, 0.0)._replace(device="cuda:0")


@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "random_dense_heads_and_batch"])
def test_it_is_given_what_each_row_of_each_head_and_sequence_sees(family):
    mask = FAMILIES[family]()
    ends = cudnn_plan._ends(mask, problem_of(mask))
    assert ends.dtype is torch.int32 and ends.is_contiguous() and ends.shape[2] == 2 * N and ends.shape[1] % 2 == 1
    assert len(ends) in (1, 4)
    found = expanded(ends.numpy(), N, 2)
    dense = mask.to_dense().astype(bool)
    expected = np.broadcast_to(dense.repeat(len(ends) // dense.shape[1], 1), (2, len(ends), N, N))
    assert np.array_equal(found, expected)
    between = np.diff(ends.numpy(), axis=1)
    assert (between >= 0).all() and ends.min() >= 0 and ends.max() <= N  # as the package asks for


def test_every_kind_of_mask_becomes_the_same_mask():
    mask = masks.causal_document([30, 40], N)
    rows = masks.from_cu_seqlens(torch.tensor([0, 30, 70]), N)
    problem = problem_of(mask)
    dense = torch.from_numpy(mask.to_dense()).bool()
    for call in (
        Call(mask.tensor),
        Call(rows.startend_row_indices, causal=True),
        Call(dense),
    ):
        assert np.array_equal(cudnn_plan._host_mask(call, problem).to_dense(), mask.to_dense())
    assert cudnn_plan._host_mask(Call(causal=True), problem) == masks.causal(N)


@pytest.fixture
def a_gpu(monkeypatch):
    """A machine whose first GPU has a compute capability, with or without the package."""

    def here(capability=(9, 0), installed=True):
        cudnn_plan._is_preferred.cache_clear()
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *given: capability)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda *given: "A GPU")
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
        monkeypatch.setattr(cudnn_plan, "_why_not_installed", lambda: "" if installed else "it is not installed")
        monkeypatch.setattr(cudnn_plan.importlib.metadata, "version", lambda name: "1.32.0")

    monkeypatch.delenv("FLASHMASK_BACKEND", raising=False)
    yield here
    cudnn_plan._is_preferred.cache_clear()


REFUSED = {
    "dropout is given": (Call(dropout=0.1), {}),
    "sinks is given": (Call(sinks=torch.zeros(4)), {}),
    r"score='softcap\(30.0\)'": (Call(change="softcap(30.0)"), {}),
    "score='alibi'": (Call(change="alibi"), {}),
    "invariant is given": (Call(invariant=True), {}),
    "score='bias'": (Call(change="bias", bias=torch.zeros(1, 1, 1, N)), {}),
    "block_mask is given": (Call(block_mask=torch.ones(1, 1, 1, 1, dtype=torch.int32)), {}),
    "q is float32": (Call(), {"dtype": "float32"}),
    "head dims are 80 and 144": (Call(), {"dims": (80, 144)}),
    "head dims are 20 and 20": (Call(), {"dims": (20, 20)}),
    "there is nothing to compute": (Call(), {"batch": 0}),
}


def test_no_field_of_a_call_is_left_out_silently():
    """Whatever calls get later is refused until somebody says that the package has it."""
    for name in set(Call._fields) - cudnn_plan._SERVED:
        default = Call._field_defaults[name]
        other = {None: torch.zeros(1), False: True, "": "alibi"}.get(default, 1)
        assert cudnn_plan._why_not_features(Call()._replace(**{name: other})), name
    assert not cudnn_plan._why_not_features(Call(torch.zeros(1), causal=True, scale=0.5, deterministic=True, cudnn=2))


@pytest.mark.parametrize("reason", REFUSED)
def test_what_it_has_not_is_refused_by_name_or_left_to_ours(reason, a_gpu):
    a_gpu()
    call, options = REFUSED[reason]
    problem = problem_of(**options)
    with pytest.raises(NotImplementedError, match=f'^backend="cudnn" was asked for, and .*{reason}'):
        cudnn_plan.cudnn_plan(call._replace(cudnn=BY_NAME), problem)
    assert cudnn_plan.cudnn_plan(call._replace(cudnn=WHERE_IT_SERVES), problem) is None


def test_so_are_gpus_without_kernels_machines_without_the_package_and_rows_of_many_ranges(a_gpu):
    striped = masks.from_dense(np.arange(200) % 2 == 0 | np.zeros((200, 1), bool))
    cases = [
        ((8, 0), True, Call(), "it has kernels for compute capability 9.0, 10.0 and 10.3, and cuda:0 has 8.0"),
        ((9, 0), False, Call(), "it is not installed"),
        ((9, 0), True, Call(striped.tensor), "row 0 needs 199 ends of visible ranges; at most 63"),
    ]
    for capability, installed, call, reason in cases:
        a_gpu(capability, installed)
        problem = problem_of(striped if call.mask is not None else None)
        with pytest.raises(NotImplementedError, match=f'^backend="cudnn" was asked for, and .*{reason}'):
            cudnn_plan.cudnn_plan(call._replace(cudnn=BY_NAME), problem)
        assert cudnn_plan.cudnn_plan(call._replace(cudnn=WHERE_IT_SERVES), problem) is None


def test_booleans_go_there_by_name_only_and_masks_of_plans_never(a_gpu):
    a_gpu()
    assert cudnn_plan.why_not(Call(torch.ones(1, 1, N, N, dtype=torch.bool), cudnn=BY_NAME), problem_of()) == ""
    reason = cudnn_plan.why_not(Call(torch.ones(1, 1, N, N, dtype=torch.bool), cudnn=WHERE_IT_SERVES), problem_of())
    assert reason.startswith("the mask is booleans")
    q = torch.zeros(1, N, 2, 16)
    plan = flashmask.plan(masks.causal(N), q, q, q, form="bits")
    assert cudnn_plan.why_not(Call(plan.tensor), problem_of()).startswith("the mask is that of a plan")
    assert cudnn_plan.why_not(Call(masks.causal(N).tensor), problem_of()) == ""


@pytest.mark.parametrize(
    ("capability", "installed", "environment", "chosen"),
    [
        ((9, 0), True, None, False),
        ((9, 0), True, "cudnn", True),
        ((10, 0), True, None, True),
        ((10, 3), True, "", True),
        ((10, 0), True, "flashmask", False),
        ((10, 0), False, None, False),
        ((12, 0), True, None, False),
    ],
)
def test_who_computes_is_chosen_by_gpu_and_environment(capability, installed, environment, chosen, a_gpu, monkeypatch):
    a_gpu(capability, installed)
    if environment is not None:
        monkeypatch.setenv("FLASHMASK_BACKEND", environment)
    if chosen:
        with pytest.warns(UserWarning, match=r"^A GPU runs attention through cudnn.flex_attention 1.32.0"):
            assert cudnn_plan.resolved(Call(), 0).cudnn == WHERE_IT_SERVES
    assert cudnn_plan.resolved(Call(), 0).cudnn == (WHERE_IT_SERVES if chosen else 0)  # and is said once
    assert cudnn_plan.resolved(Call(cudnn=OURS), 0).cudnn == 0
    assert cudnn_plan.resolved(Call(cudnn=BY_NAME), 0).cudnn == BY_NAME


def test_an_environment_that_cannot_be_followed_is_said(a_gpu, monkeypatch):
    a_gpu((8, 0))
    monkeypatch.setenv("FLASHMASK_BACKEND", "cudnn")
    with pytest.warns(UserWarning, match=r"and cuda:0 has 8\.0; A GPU runs our kernels"):
        assert cudnn_plan.resolved(Call(), 0).cudnn == 0
    a_gpu()
    monkeypatch.setenv("FLASHMASK_BACKEND", "cuddn")
    with pytest.raises(ValueError, match=r"^FLASHMASK_BACKEND is 'cuddn'; expected flashmask or cudnn"):
        cudnn_plan.resolved(Call(), 0)


def test_functions_take_it_and_refuse_it_on_the_cpu():
    q = torch.randn(1, 20, 2, 16)
    mask, ends = masks.causal(20), torch.tensor([0, 20], dtype=torch.int32)
    calls = {
        "attention": lambda **backend: flashmask.attention(q, q, q, mask, **backend),
        "row indices": lambda **backend: flashmask.flashmask_attention(q, q, q, causal=True, **backend),
        "varlen": lambda **backend: flashmask.varlen_attention(q[0], q[0], q[0], ends, ends, causal=True, **backend),
    }
    for call in calls.values():
        assert torch.equal(call(), call(backend="flashmask"))
        with pytest.raises(NotImplementedError, match='backend="cudnn" was asked for, and q is on cpu'):
            call(backend="cudnn")
        with pytest.raises(ValueError, match="backend is 'cuda'; expected"):
            call(backend="cuda")
    with pytest.raises(TypeError, match='backend="cudnn" computes torch tensors'):
        flashmask.attention(q.numpy(), q.numpy(), q.numpy(), mask, backend="cudnn")
    with pytest.raises(ValueError, match='backend="cudnn" came beside a plan'):
        flashmask.attention(q, q, q, plan=flashmask.plan(mask, q, q), backend="cudnn")
    assert cudnn_of(None) == 0


def test_an_environment_that_names_no_backend_is_refused_on_the_cpu_too(monkeypatch):
    monkeypatch.setenv("FLASHMASK_BACKEND", "foo")
    q = torch.randn(1, 21, 2, 16)  # of a shape that no plan was made for
    with pytest.raises(ValueError, match=r"^FLASHMASK_BACKEND is 'foo'; expected flashmask or cudnn, or nothing"):
        flashmask.attention(q, q, q)


def test_nothing_of_it_is_imported_by_importing_or_calling_flashmask():
    code = (
        "import sys, torch, flashmask; q = torch.randn(1, 8, 2, 16); flashmask.attention(q, q, q); "
        "sys.exit(any(name.split('.')[0] in ('cudnn', 'cutlass') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
