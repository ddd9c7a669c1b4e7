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
    ],
    ids=["second derivative", "vmap", "func.grad", "sinks"],
)
def test_transforms(ask):
    with pytest.raises(NotImplementedError) as error:
        ask()
    assert_said(str(error.value), str(error.value))


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


def test_gpus_of_others(monkeypatch):
    """No such GPU is here: a PyTorch that says that it is AMD's, and the refusal of the operators' other devices."""
    program = """import torch; torch.version.hip = "6.4"
from flashmask._torch.cuda import backward_cuda, forward_cuda
for call in (forward_cuda, backward_cuda):
    try:
        call(*[torch.zeros(1, 8, 2, 8)] * 3, None)
    except NotImplementedError as error:
        print(error)"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert said.splitlines() == [said.splitlines()[0]] * 2
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
