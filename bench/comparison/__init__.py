"""FlashMask beside PyTorch's own attention and other kernels; bench/compare.py runs it."""
