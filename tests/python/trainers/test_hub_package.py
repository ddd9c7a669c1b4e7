# SPDX-License-Identifier: Apache-2.0
"""scripts/hub-package: what it lays out is loaded by Hugging Face's kernels, and by Transformers through them."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="kernels loads packages for torch")

import flashmask  # noqa: E402
from flashmask._abi.library import library_path  # noqa: E402

SCRIPT = Path(__file__).parents[3] / "scripts" / "hub-package"
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not SCRIPT.exists(), reason="the script is in a checkout only")]
needs_kernels = pytest.mark.skipif(
    not importlib.util.find_spec("kernels"), reason="kernels loads the package: scripts/test-trainers kernels"
)


def run(command, **variables):
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", **variables}
    return subprocess.run(command, check=False, capture_output=True, text=True, env=environment)


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """The folder made of a wheel that holds this package."""
    work = tmp_path_factory.mktemp("hub")
    wheel = work / f"flashmask-{flashmask.__version__}-py3-none-linux_{os.uname().machine}.whl"
    source = Path(flashmask.__file__).parent
    files = [path for path in source.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    with zipfile.ZipFile(wheel, "w") as archive:
        for path in {*files} - {Path(library_path())}:
            archive.write(path, path.relative_to(source.parent))
        archive.write(library_path(), "flashmask/libflashmask.so")
    made = run([sys.executable, str(SCRIPT), str(wheel), str(work / "package")])
    assert made.returncode == 0, made.stderr
    assert made.stdout.split() == sorted(os.listdir(work / "package" / "build"))
    return work / "package"


def without_flashmask(tmp_path, script, **variables):
    """What a script prints in a Python that finds torch and kernels where this one does, and no flashmask."""
    (tmp_path / "script.py").write_text(script)
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    kept = [path for path in paths if path and not (Path(path) / "flashmask").exists()]
    given = {"PYTHONPATH": os.pathsep.join(kept), "FLASHMASK_LIBRARY": "", **variables}
    ran = run([sys.executable, str(tmp_path / "script.py")], **given)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_each_variant_says_what_it_is(package):
    variants = {path.name: json.loads((path / "metadata.json").read_text()) for path in (package / "build").iterdir()}
    machine = os.uname().machine
    assert variants[f"torch-stable-abi26-cpu-{machine}-linux"]["backend"] == {"type": "cpu"}
    assert len({metadata["id"] for metadata in variants.values()}) == len(variants)
    for name, metadata in variants.items():
        assert metadata["name"] == "flashmask" and metadata["version"] == 1
        assert metadata["backend"]["type"] == ("cpu" if "-cpu-" in name else "cuda")
        assert (package / "build" / name / "flashmask" / "libflashmask.so").is_file()


@needs_kernels
def test_kernels_loads_it_and_it_computes(package, tmp_path):
    script = f"""
import torch
from pathlib import Path
from kernels import get_local_kernel

loaded = get_local_kernel(Path({str(package)!r}))
q = torch.randn(6, 2, 8)
cu = torch.tensor([0, 2, 6], dtype=torch.int32)
o = loaded.flash_attn_varlen_func(q, q, q, cu, cu, 4, 4, causal=True)
print(bool((o[0] == q[0]).all()), bool((o[2] == q[2]).all()), loaded.__version__, loaded.__all__)
"""
    said = f"True True {flashmask.__version__} ['flash_attn_func', 'flash_attn_varlen_func']\n"
    assert without_flashmask(tmp_path, script) == said


@needs_kernels
def test_transformers_trains_packed_through_it(package, tmp_path):
    transformers = pytest.importorskip("transformers", reason="it takes packages of the Hub as attention")
    if not transformers.utils.import_utils.is_kernels_available():
        pytest.skip(f"Transformers {transformers.__version__} takes another version of kernels")
    script = """
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

torch.manual_seed(0)
sizes = dict(vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4)
config = LlamaConfig(**sizes, num_key_value_heads=2, initializer_range=0.3)
model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").train()
tokens = torch.randint(0, 64, (1, 12))
positions = torch.cat([torch.arange(5), torch.arange(7)])[None]
results = []
for name in ("eager", "flashmask/flashmask"):
    model.set_attn_implementation(name, allow_all_kernels=True)
    logits = model(tokens, position_ids=positions, use_cache=False).logits
    logits.logsumexp(-1).sum().backward()
    results.append([logits.detach(), *(each.grad for each in model.parameters())])
    plain = model(tokens, use_cache=False).logits.detach()
    results[-1].append(plain)
    model.zero_grad()
print(max(float((one - other).abs().max()) for one, other in zip(*results)) < 1e-4)
"""
    assert without_flashmask(tmp_path, script, LOCAL_KERNELS=f"flashmask/flashmask={package}") == "True\n"


@needs_kernels
def test_another_installed_version_is_refused(package, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(package, copy)
    for loader in copy.glob("build/*/__init__.py"):
        loader.write_text(loader.read_text().replace(f'"{flashmask.__version__}"', '"9.9.9"'))
    script = f"from pathlib import Path; from kernels import get_local_kernel; get_local_kernel(Path({str(copy)!r}))"
    ran = run([sys.executable, "-c", script])
    assert ran.returncode != 0 and f"and {flashmask.__version__} is installed; a process can" in ran.stderr


def test_what_is_no_wheel_is_refused(package, tmp_path):
    told = run([sys.executable, str(SCRIPT), "nothing.whl", str(tmp_path / "new")])
    assert told.returncode == 2 and told.stderr.startswith("scripts/hub-package: nothing.whl is no wheel for Linux")
    assert run([sys.executable, str(SCRIPT)]).returncode == 2
    assert "Usage: scripts/hub-package WHEEL FOLDER" in run([sys.executable, str(SCRIPT), "--help"]).stdout
