"""Graphs of PyTorch's default compiler on the CPU: every tensor builder and every call, by value against eager mode."""

import pytest
import torch
from compiled_calls import FEWER_OPTIONS, MODES, OF_HOST_MASKS, OF_TENSORS, OPTIONS, check_builders, check_calls

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize(
    ("dtype", "mode", "options"),
    [
        (torch.int64, "default", OPTIONS),
        (torch.int32, "default", FEWER_OPTIONS),
        *((torch.int64, mode, FEWER_OPTIONS) for mode in MODES[1:]),
    ],
    ids=["int64", "int32", *MODES[1:]],
)
def test_builders_say_what_they_say_in_eager_mode(dtype, mode, options):
    check_builders("cpu", dtype, mode, options)


@pytest.mark.parametrize("mode", MODES)
def test_masks_of_tensors_give_the_bits_of_eager_mode(mode):
    check_calls(OF_TENSORS, "cpu", torch.float32, mode)


def test_masks_on_the_host_give_the_bits_of_eager_mode():
    check_calls(OF_HOST_MASKS, "cpu", torch.float32, "default")
