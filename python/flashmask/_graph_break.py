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
    """Wraps a function so that torch.compile calls it between two graphs as eager mode does, and never traces it."""

    @wraps(function)
    def call(*arguments: Parameters.args, **keywords: Parameters.kwargs) -> Result:
        # is_compiling() would not do: frames without a graph run as they are, and the compiler traces what they call.
        if "torch._dynamo" in sys.modules:
            from flashmask._torch.between_graphs import between_graphs

            result: Result = between_graphs(function, *arguments, **keywords)
            return result
        return function(*arguments, **keywords)

    return call
