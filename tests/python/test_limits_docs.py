# SPDX-License-Identifier: Apache-2.0
"""docs/limits.md: what it says that the library says is what the library says."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import flashmask
from flashmask import masks
from flashmask._backends import BY_NAME

torch = pytest.importorskip("torch", reason="most limits are those of PyTorch's transforms")

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "limits.md").read_text()
MASK = masks.causal(8, 8)


def tensor():
    return torch.randn(1, 8, 2, 8)


class Layer(torch.nn.Module):
    def forward(self, q):
        return flashmask.attention(q, q, q, MASK)


class Tracer:
    """What JAX hands to a function inside jit: an array's type without values."""

    dtype, shape = np.dtype("float32"), (1, 8, 2, 8)

    def __dlpack__(self, **options):
        raise TypeError("Abstract tracer value encountered where concrete value is expected")

    __array__ = __dlpack_device__ = __dlpack__


def second_derivative():
    q = tensor().requires_grad_()
    (gradient,) = torch.autograd.grad(Layer()(q).square().sum(), q, create_graph=True)
    gradient.sum().backward()


def trained_sinks_of_documents():
    q = tensor()
    flashmask.attention(q, q, q, MASK, sinks=torch.zeros(2, requires_grad=True), invariant=True)


def gradient_through_a_tangent():
    q = tensor().requires_grad_()
    torch.func.jvp(Layer(), (q,), (tensor(),))[1].sum().backward()


def assert_said(sentence, text):
    """By the library, in so many words, and by the page."""
    assert sentence in text
    assert f'"{sentence}"' in PAGE


@pytest.mark.parametrize(
    "ask",
    [
        second_derivative,
        lambda: torch.func.vmap(Layer())(torch.randn(3, 1, 8, 2, 8)),
        lambda: torch.func.grad(lambda q: Layer()(q).sum())(tensor()),
        trained_sinks_of_documents,
        gradient_through_a_tangent,
    ],
    ids=["second derivative", "vmap", "func.grad", "sinks", "tangent"],
)
def test_transforms(ask):
    with pytest.raises(NotImplementedError) as error:
        ask()
    assert_said(str(error.value), str(error.value))


FLEX = (ROOT / "docs" / "flex.md").read_text()


def flex_call(tokens=8, **options):
    q = torch.zeros(1, 8, 1, 8).expand(-1, -1, tokens, -1)
    keys = options.pop("keys", q)
    return lambda: flashmask.flex_attention(**{"query": q, "key": keys, "value": keys} | options)


def block_mask(mask_mod=lambda b, h, i, j: i >= j):
    from torch.nn.attention.flex_attention import create_block_mask

    made = create_block_mask(lambda b, h, i, j: i >= j, None, None, 8, 8, device="cpu")
    made.mask_mod = mask_mod
    return made


def reading_elsewhere(score, b, h, i, j):
    return score + torch.zeros(8, device="meta")[j]


FLEX_REFUSALS = {
    "flashmask computes a factor of either token, a softcap, a bias without the score, -inf, and functions of one "
    "score": flex_call(score_mod=lambda s, b, h, i, j: torch.special.i0(s)),
    "kernel_options has 'BLOCKS', which FlexAttention does not know": flex_call(kernel_options={"BLOCKS": 1}),
    "score_mod adds a bias of each pair that it computes, 2.0 GiB for these sizes": flex_call(
        8192, score_mod=lambda s, b, h, i, j: s + torch.sqrt(i * j + h)
    ),
    "block_mask was created for block_mask.shape=(1, 1, 8, 8) but got q_len=16 and kv_len=16. As the block mask was "
    "created for a smaller length than you're using it for, you likely need to create a new block mask.": flex_call(
        16, block_mask=block_mask()
    ),
    "Cannot use mask_mod from a sliced BlockMask": flex_call(block_mask=block_mask()[:, :, 0]),
    "a captured tensor is on meta, the mask on cpu; move it there": flex_call(score_mod=reading_elsewhere),
    "mask_mod returned torch.int64; expected booleans": flex_call(block_mask=block_mask(lambda b, h, i, j: i - j)),
    "query is a nested tensor; expected a dense one": flex_call(
        query=torch.nested.nested_tensor([torch.zeros(4, 3, 8)], layout=torch.jagged)
    ),
    "key has dtype torch.float8_e4m3fn; expected torch.float32, bfloat16, float16 or float64, that of query": flex_call(
        keys=torch.zeros(1, 8, 8, 8).to(torch.float8_e4m3fn)
    ),
    "flashmask makes masks and plans, and reads score_mods, on the host, where a graph with fullgraph=True cannot "
    "break": torch.compile(flex_call(block_mask=block_mask()), backend="eager", fullgraph=True),
}


@pytest.mark.parametrize("sentence", FLEX_REFUSALS)
def test_flex_attention(sentence):
    """docs/flex.md quotes all of these, docs/limits.md some."""
    with pytest.raises(Exception) as error:
        FLEX_REFUSALS[sentence]()
    assert sentence in str(error.value)
    assert f'"{sentence}' in " ".join(FLEX.split())


def test_flex_attention_in_the_limits():
    quoted = [line.split("|")[2].strip() for line in PAGE.splitlines() if line.startswith("| `flex_attention`")]
    assert len(quoted) == 3 and {each.strip('"') for each in quoted} <= set(FLEX_REFUSALS)


def test_fp8():
    q = tensor().to(torch.float8_e4m3fn)
    with pytest.raises(TypeError) as error:
        flashmask.attention(q, q, q, MASK)
    assert_said(str(error.value), str(error.value))


def test_a_traced_array_of_jax():
    with pytest.raises(TypeError) as error:
        flashmask.attention(Tracer(), Tracer(), Tracer(), MASK)
    told = "q is Tracer of float32 [1, 8, 2, 8], "
    assert_said(str(error.value).removeprefix(told), str(error.value))
    assert str(error.value).startswith(told)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_scripting_compiler():
    with pytest.raises(Exception) as error:
        torch.jit.script(Layer())
    assert_said(
        "Compiled functions can't take variable number of arguments or use keyword-only arguments with defaults",
        str(error.value),
    )


@pytest.mark.slow
def test_onnx(capfd):
    pytest.importorskip("onnxscript", reason="onnxscript is not installed")
    with pytest.raises(Exception) as error:
        torch.onnx.export(Layer(), (tensor(),), os.devnull, dynamo=True)
    sentence = "No ONNX function found for <OpOverload(op='flashmask.forward', overload='default')>"
    assert_said(sentence, str(error.value))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_onnx_by_the_older_exporter(capfd):
    with pytest.raises(Exception) as error:
        torch.onnx.export(Layer(), (tensor(),), os.devnull, dynamo=False)
    assert_said("ONNX export failed on an operator with unrecognized namespace flashmask::forward", str(error.value))


def test_the_largest_scores_on_a_gpu():
    from flashmask._plans.call import Call
    from flashmask._torch.cuda import forward_with_max_scores_cuda

    with pytest.raises(NotImplementedError) as error:
        forward_with_max_scores_cuda(tensor(), tensor(), tensor(), Call(cudnn=BY_NAME))
    assert_said('backend="cudnn" was asked for beside the largest score of each row', str(error.value))
    sentence = "max_scores is given for a problem with dropout or a change of scores"
    assert_said(sentence, (ROOT / "src" / "cuda" / "sm90" / "forward" / "forward.cpp").read_text())
    assert f'"{sentence}"' in FLEX


def test_changes_of_scores_that_a_gpu_compiles():
    for source, sentence in [
        (
            "src/plan/attention.cpp",
            "forward_tangents: it was asked for on a GPU, which computes it under a factor, a cap, then a bias",
        ),
        ("src/cuda/compile/nvrtc.cpp", "this change of scores needs a kernel that NVRTC compiles"),
        ("src/cuda/compile/compiled_kernel.cpp", "plan: this change of scores has no compiled kernel yet"),
    ]:
        assert_said(sentence, (ROOT / source).read_text())


def test_tangents_on_a_gpu():
    """tests/cuda asks a GPU for them."""
    sentence = "has no tangents; on a GPU the kernels of mma.sync have them, for heads of up to 128 dims"
    assert_said(sentence, (ROOT / "src" / "plan" / "attention.cpp").read_text())


def test_gpus_of_others(monkeypatch):
    """No such GPU is here: a PyTorch that says that it is AMD's, and the refusal of the operators' other devices."""
    program = """import torch; torch.version.hip = "6.4"
from flashmask._torch.cuda import backward_cuda, forward_cuda, forward_with_max_scores_cuda
for call in (forward_cuda, forward_with_max_scores_cuda, backward_cuda):
    try:
        call(*[torch.zeros(1, 8, 2, 8)] * 3, None)
    except NotImplementedError as error:
        print(error)"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert said.splitlines() == [said.splitlines()[0]] * 3
    assert_said("flashmask has kernels for NVIDIA's GPUs, and this PyTorch is for AMD's", said)
    from flashmask._torch import operators

    monkeypatch.setattr(operators, "kernels", lambda: [{"device": "cpu"}])
    with pytest.raises(ValueError) as error:
        operators._refuse_device(tensor().to("meta"))
    assert_said("this build of flashmask computes on the devices: cpu", str(error.value))


def test_old_gpus():
    """tests/cuda asserts the sentence of the library, by a device's facts."""
    sentence = "cuda:0 (Tesla T4) has compute capability 7.5; it needs 8.0 or later"
    assert_said(sentence, (ROOT / "tests" / "cuda" / "device_test.cpp").read_text())


@pytest.mark.skipif(not shutil.which("cmake"), reason="cmake is not installed")
@pytest.mark.parametrize(
    ("system", "sentence"),
    [
        ("Windows", "flashmask is for Linux, and this is Windows: build it in WSL 2 or in a Linux container"),
        ("Darwin", "nobody has built or tested it here"),
        ("Linux", None),
    ],
)
def test_other_systems(system, sentence):
    command = ["cmake", "-D", f"CMAKE_SYSTEM_NAME={system}", "-P", str(ROOT / "cmake" / "FlashmaskSystem.cmake")]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == (system == "Windows")
    if sentence is None:
        assert ran.stderr == ""
    else:
        assert_said(sentence, " ".join(ran.stderr.split()))
