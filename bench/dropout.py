# SPDX-License-Identifier: Apache-2.0
"""Cost of dropout on a GPU, beside FlashAttention-2 (PyTorch's scaled_dot_product_attention) with dropout.

32,768 tokens as 4 sequences of 8,192, hidden size 4,096, bfloat16. Contestants take turns, each launched ten times back
to back; the numbers are median milliseconds. --kernel is the beginning of the names of kernels to use, such as sm80 on
a Hopper GPU.

python bench/dropout.py
"""

import argparse
import os
from collections.abc import Callable

import torch
from comparison.clock import in_turns, one_way
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import flashmask

BATCH, TOKENS, HIDDEN, DROPOUT = 4, 8192, 4096, 0.1
CASES = {"d 128 full": (128, False), "d 128 causal": (128, True), "d 64 full": (64, False)}


def ours(q: Tensor, k: Tensor, v: Tensor, causal: bool, dropout: float) -> Callable[[], Tensor]:
    return lambda: flashmask.flashmask_attention(q, k, v, causal=causal, dropout=dropout)


def theirs(q: Tensor, k: Tensor, v: Tensor, causal: bool, dropout: float) -> Callable[[], Tensor]:
    def attend() -> Tensor:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return scaled_dot_product_attention(q, k, v, is_causal=causal, dropout_p=dropout)

    return attend


def measured(way: str, dim: int, causal: bool) -> dict[str, float]:
    shape = BATCH, TOKENS, HIDDEN // dim, dim
    leaves = [torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]
    turned = [each.detach().transpose(1, 2).requires_grad_() for each in leaves]
    grad = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
    q, k, v = leaves
    return in_turns(
        {
            "none": one_way(way, ours(q, k, v, causal, 0), leaves, grad),
            "dropout": one_way(way, ours(q, k, v, causal, DROPOUT), leaves, grad),
            "FlashAttention-2 with dropout": one_way(
                way, theirs(*turned, causal, DROPOUT), turned, grad.transpose(1, 2)
            ),
        },
        seconds=2,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernel", help="the beginning of the names of kernels to take")
    kernel = parser.parse_args().kernel
    if not torch.cuda.is_available():
        parser.error("no CUDA device is here; this measures GPUs alone")
    if kernel:
        os.environ["FLASHMASK_KERNEL"] = kernel
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, dropout {DROPOUT}")
    for name, (dim, causal) in CASES.items():
        for way in ("forward", "backward"):
            times = measured(way, dim, causal)
            said = "  ".join(f"{each} {taken:.2f}" for each, taken in times.items())
            print(f"{name:13} {way:9} {said}  ratio {times['dropout'] / times['none']:.2f}", flush=True)


if __name__ == "__main__":
    main()
