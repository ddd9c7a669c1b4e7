# SPDX-License-Identifier: Apache-2.0
"""Graphs of PyTorch's default compiler on the CPU: every tensor builder and every call, by value against eager mode.

Its other modes differ on GPUs alone: test_cuda_compile_values.py.
"""

import pytest
import torch
from compiled_calls import FEWER_OPTIONS, OF_HOST_MASKS, OF_TENSORS, OPTIONS, check_builders, check_calls

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize(
    ("dtype", "options", "dynamic"),
    [
        (torch.int32, ["prefix and window"], True),  # one graph for all lengths, where None makes two
        pytest.param(torch.int32, FEWER_OPTIONS, None, marks=pytest.mark.full),
        pytest.param(torch.int64, list(OPTIONS), None, marks=pytest.mark.full),
    ],
    ids=["int32, one option", "int32", "int64"],
)
def test_builders_say_what_they_say_in_eager_mode(dtype, options, dynamic):
    check_builders("cpu", dtype, "default", {name: OPTIONS[name] for name in options}, dynamic)


@pytest.mark.full
def test_masks_of_tensors_give_the_bits_of_eager_mode():
    check_calls(OF_TENSORS, "cpu", torch.float32, "default")


def test_masks_on_the_host_give_the_bits_of_eager_mode():
    check_calls(OF_HOST_MASKS, "cpu", torch.float32, "default")
