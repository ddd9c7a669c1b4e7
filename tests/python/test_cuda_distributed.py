# SPDX-License-Identifier: Apache-2.0
"""flashmask.distributed over two GPUs with NCCL, where there are two."""

import pytest
import torch
from ranks import assert_cases_pass


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason=f"needs two GPUs, found {torch.cuda.device_count()}")
def test_cases_on_two_gpus(tmp_path):
    # NVLink multicast is not everywhere that NVLink is, and is never needed.
    assert_cases_pass("distributed_cuda_cases", 2, tmp_path, NCCL_NVLS_ENABLE="0")
