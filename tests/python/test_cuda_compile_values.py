# SPDX-License-Identifier: Apache-2.0
"""Graphs of PyTorch's default compiler on a GPU: every tensor builder and every call, by value against eager mode."""

import pytest
import torch
from compiled_calls import BOOLEANS, MODES, OF_HOST_MASKS, OF_TENSORS, check_builders, check_calls
from cuda_device import needs_gpu

pytestmark = needs_gpu


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_builders_say_what_they_say_in_eager_mode(dtype, mode):
    check_builders("cuda", dtype, mode)


@pytest.mark.parametrize("mode", MODES)
def test_masks_of_tensors_give_the_results_of_eager_mode(mode):
    check_calls(OF_TENSORS | BOOLEANS, "cuda", torch.bfloat16, mode)


@pytest.mark.parametrize("mode", MODES)
def test_masks_on_the_host_give_the_results_of_eager_mode(mode):
    check_calls(OF_HOST_MASKS, "cuda", torch.bfloat16, mode)
