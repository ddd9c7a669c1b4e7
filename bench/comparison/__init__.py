# SPDX-License-Identifier: Apache-2.0
"""FlashMask beside PyTorch's own attention and other kernels; bench/compare.py runs it."""
