# SPDX-License-Identifier: Apache-2.0
"""Tensors that wait in host memory, and the memory they wait in; ordinary memory here, page-locked on a GPU."""

import gc
import weakref

import pytest

torch = pytest.importorskip("torch", reason="flashmask.training is for torch")

from flashmask.training import HostMemory, Offload  # noqa: E402
from flashmask.training import _host_memory as module  # noqa: E402


def test_a_tensor_comes_back_as_it_was():
    with HostMemory(page_locked=False) as memory:
        offload = Offload(memory)
        given = [torch.randn(3, 5), torch.arange(7), torch.randn(2, 4, 6).bfloat16().mT, torch.zeros(0, 3)]
        kept = [offload.keep(each) for each in given]
        copies = [each.clone() for each in given]
        for each in given:
            each.zero_()
        for each, expected in zip(reversed(kept), reversed(copies), strict=True):
            offload.fetch_next()
            back = each.take()
            assert back.dtype == expected.dtype and torch.equal(back, expected)


def test_one_tensor_at_a_time_comes_ahead():
    with HostMemory(page_locked=False) as memory:
        offload, made = Offload(memory), []
        kept = [offload.keep(torch.full((3,), float(each))) for each in range(4)]
        offload.fetch = lambda each, fetch=offload.fetch: made.append(each) or fetch(each)
        for last in reversed(kept):
            offload.fetch_next()
            offload.fetch_next()
            assert made[-1] is last and len(made) == 4 - kept.index(last)
            assert torch.equal(last.take(), torch.full((3,), float(kept.index(last))))
        offload.fetch_next()
        assert len(made) == 4


def test_memory_is_as_long_as_asked_for_and_used_again():
    with HostMemory(page_locked=False) as memory:
        first, second = memory.take(1000), memory.take(5000)
        assert memory.bytes == 6000 and first.numel() == 1000
        memory.give_back(first)
        memory.give_back(second)
        assert memory.take(900).data_ptr() == first.data_ptr()
        assert memory.take(1001).data_ptr() == second.data_ptr()
        memory.take(1)
        assert memory.bytes == 6001


def test_a_kept_tensor_that_nobody_wants_frees_its_piece():
    with HostMemory(page_locked=False) as memory:
        offload = Offload(memory)
        for _ in range(3):
            offload.keep(torch.zeros(100))
            gc.collect()
        offload.fetch_next()
        assert memory.bytes == 400


def test_closed_memory_hands_out_nothing():
    memory = HostMemory(page_locked=False)
    piece = memory.take(10)
    memory.close()
    memory.close()
    memory.give_back(piece)
    assert memory.bytes == 0
    with pytest.raises(RuntimeError, match="was closed"):
        memory.take(10)


class Cuda:
    """Stands in for CUDA's runtime: which addresses are locked, and after how many it fails."""

    def __init__(self, at_most):
        self.locked, self.at_most = set(), at_most

    def cudaHostRegister(self, address, size, flags):
        if len(self.locked) == self.at_most:
            return 2
        self.locked.add(address)
        return 0

    def cudaHostUnregister(self, address):
        self.locked.remove(address)
        return 0


@pytest.fixture
def cuda(monkeypatch):
    made = Cuda(at_most=2)
    monkeypatch.setattr(module, "_runtime", lambda: made)
    monkeypatch.setattr(module, "_forget_error", lambda: None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    return made


def test_what_is_locked_is_unlocked_on_every_way_out(cuda):
    with HostMemory(page_locked=True) as memory:
        memory.give_back(memory.take(10))
        memory.take(20)
        assert len(cuda.locked) == 2
    assert not cuda.locked
    with pytest.raises(KeyboardInterrupt), HostMemory(page_locked=True) as memory:
        memory.take(10)
        raise KeyboardInterrupt
    assert not cuda.locked
    forgotten = HostMemory(page_locked=True)
    forgotten.take(10)
    alive = weakref.ref(forgotten)
    del forgotten
    gc.collect()
    assert alive() is None and not cuda.locked


def test_says_what_memory_is_asked_for_wrong(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(RuntimeError, match="page_locked is True, but torch finds no GPU to copy to"):
        HostMemory(page_locked=True)
    with HostMemory(page_locked=False) as memory, pytest.raises(ValueError, match="size is -1; expected at least 0"):
        memory.take(-1)
    with pytest.raises(TypeError, match="memory is NoneType None; expected a HostMemory"):
        Offload(None)


def test_says_that_the_host_has_no_such_memory():
    with HostMemory(page_locked=False) as memory:
        with pytest.raises(MemoryError, match=r"the host has no 1073741824\.00 GiB more; offload fewer inputs"):
            memory.take(1 << 60)
        assert memory.bytes == 0


def test_says_that_no_more_can_be_locked(cuda):
    with HostMemory(page_locked=True) as memory:
        memory.take(10)
        memory.take(20)
        with pytest.raises(MemoryError, match=r"the host has no 0\.00 GiB more to lock .* offload fewer inputs"):
            memory.take(30)
        assert memory.bytes == 30
    assert not cuda.locked
