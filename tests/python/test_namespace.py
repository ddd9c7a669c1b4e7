# SPDX-License-Identifier: Apache-2.0
"""Another library may define the namespace "flashmask" too, as the extension of the FlashMask authors does."""

import subprocess
import sys

import pytest

OTHER = """
import torch
other = torch.library.Library("flashmask", "DEF")
other.define("another(Tensor x) -> Tensor")
other.impl("another", lambda x: x + 1, "CPU")
"""
OURS = """
import torch, flashmask, flashmask.operators
q = torch.ones(1, 8, 2, 4, requires_grad=True)
flashmask.attention(q, q, q, flashmask.masks.causal(8, 8)).sum().backward()
torch.testing.assert_close(q.grad.sum(), torch.tensor(64.0))  # each row's weights sum to 1
assert torch.ops.flashmask.forward.default(q, q, q, None, None, True, 0.0, 0.0, None)[0].shape == q.shape
"""
BOTH = "assert torch.ops.flashmask.another(torch.zeros(2)).tolist() == [1, 1]\n"


@pytest.mark.parametrize("code", [OTHER + OURS + BOTH, OURS + OTHER + OURS + BOTH], ids=["before", "after"])
def test_operators_share_the_namespace(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
