# SPDX-License-Identifier: Apache-2.0
"""Layers with a state under masks: states and convolutions that begin, end and fork where the mask says.

Needs PyTorch, and no kernel of this library: any recurrence that takes packed sequences does.
"""

from flashmask.recurrent._causal_conv import causal_conv
from flashmask.recurrent._one_by_one import one_by_one
from flashmask.recurrent._over_nodes import over_nodes

__all__ = ["causal_conv", "one_by_one", "over_nodes"]
