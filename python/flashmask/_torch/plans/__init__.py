# SPDX-License-Identifier: Apache-2.0
"""Plans whose masks or memory are tensors of PyTorch."""
