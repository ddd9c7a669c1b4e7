# SPDX-License-Identifier: Apache-2.0
"""Programs that end right behind a backward that PyTorch ran in another thread, as it does for GPUs."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
SOURCE = Path(__file__).parent / "threaded_device.cpp"
COMPILER = shutil.which("c++")
HEADERS = Path(sysconfig.get_paths()["include"])
PROGRAMS = 6

PROGRAM = """
import sys
import torch
import threaded_device
from flashmask._torch.autograd_threads import await_at_exit

class Empty(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return torch.empty(4, device="fpga")

    @staticmethod
    def backward(ctx, gradient):
        await_at_exit(gradient.device)
        return torch.empty(4, device="fpga")

x = torch.empty(4, device="fpga", requires_grad=True)
o = Empty.apply(x)
if sys.argv[1] == "grad":
    gradients = torch.autograd.grad(o, x, torch.empty(4, device="fpga"))
else:
    o.backward(torch.empty(4, device="fpga"))
"""


@pytest.fixture(scope="module")
def extension(tmp_path_factory):
    """The folder with the module of the device."""
    from torch.utils import cpp_extension

    folder = tmp_path_factory.mktemp("extension")
    libraries = Path(torch.__file__).parent / "lib"
    subprocess.run(
        [
            *(COMPILER, "-std=c++20", "-w", "-shared", "-fPIC", "-o", folder / "threaded_device.so", SOURCE),
            *(f"-I{path}" for path in (*cpp_extension.include_paths(), HEADERS)),
            *(f"-L{libraries}", f"-Wl,-rpath,{libraries}", "-lc10", "-ltorch_cpu", "-ltorch"),
        ],
        check=True,
    )
    return folder


@pytest.mark.skipif(COMPILER is None or not (HEADERS / "Python.h").exists(), reason="needs a C++ compiler and Python.h")
@pytest.mark.parametrize("way", ["backward", pytest.param("grad", marks=pytest.mark.full)])
def test_programs_end_in_order_behind_a_backward(extension, way):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(extension), *sys.path])}
    command = [sys.executable, "-c", PROGRAM, way]
    programs = [subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) for _ in range(PROGRAMS)]
    ends = [(program.communicate(timeout=120)[1], program.returncode) for program in programs]
    assert ends == [("", 0)] * PROGRAMS
