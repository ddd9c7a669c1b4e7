# SPDX-License-Identifier: Apache-2.0
"""What tests of several files ask for."""

import pytest


@pytest.fixture(scope="module")
def one_thread():
    """Models that are too small to share."""
    import torch  # not where tests run without it

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
