# SPDX-License-Identifier: Apache-2.0
"""Functions that run on the host, which torch.compile cannot trace: its graph breaks there."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def breaks_graph(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """The function, called by torch.compile between two graphs as eager mode calls it, and never traced."""

    @wraps(function)
    def call(*arguments: Parameters.args, **keywords: Parameters.kwargs) -> Result:
        # Not is_compiling(): frames that have no graph run as they are, and the compiler looks at what they call.
        if "torch._dynamo" in sys.modules:
            from flashmask._torch.between_graphs import between_graphs

            result: Result = between_graphs(function, *arguments, **keywords)
            return result
        return function(*arguments, **keywords)

    return call
