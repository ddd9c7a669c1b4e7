# SPDX-License-Identifier: Apache-2.0
"""The end of a program: it waits until Gloo's threads have let go of the tensors that a collective was given."""

import threading
import time

import torch

from flashmask.distributed._lent import _await_threads, lend


def lent_to_a_graph():
    """Lends a tensor that only C++ holds, as a thread of Gloo does, in the graph of what is returned."""
    tensor = torch.ones(3)
    lend(tensor)
    return torch.ones(3, requires_grad=True) * tensor


def seconds_of_waiting():
    began = time.monotonic()
    _await_threads()
    return time.monotonic() - began


def test_waits_for_tensors_that_only_cpp_holds():
    holders = [lent_to_a_graph()]
    threading.Timer(0.1, holders.clear).start()
    assert 0.05 < seconds_of_waiting() < 0.4


def test_waits_no_longer_than_half_a_second():
    kept = lent_to_a_graph()
    assert 0.4 < seconds_of_waiting() < 2
    del kept


def test_does_not_wait_where_all_are_gone():
    lent_to_a_graph()
    assert seconds_of_waiting() < 0.01
