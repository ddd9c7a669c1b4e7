# SPDX-License-Identifier: Apache-2.0
"""Objects that hold one tensor, as torch's transforms see them."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

import torch.utils._pytree as pytree
from torch.fx._pytree import register_pytree_flatten_spec


def register_leaf(
    kind: type[Any],
    name: str,
    context: Callable[[Any], Any],
    make: Callable[[Any, Any], Any],
    from_dumpable: Callable[[Any], Any] | None = None,
) -> None:
    """Registers a class whose attribute `name` is its only leaf.

    context(object) is what else it holds, and make(leaf, context) the object. from_dumpable: makes a context out of a
    list of what it holds; None where there is none.
    """
    leaf = attrgetter(name)
    dumps = {} if from_dumpable is None else {"to_dumpable_context": list, "from_dumpable_context": from_dumpable}

    def unflatten(leaves: Any, context: Any) -> Any:
        (tensor,) = leaves
        return make(tensor, context)

    pytree.register_pytree_node(
        kind,
        lambda held: ([leaf(held)], context(held)),
        unflatten,
        serialized_type_name=f"flashmask.{kind.__name__}",
        flatten_with_keys_fn=lambda held: ([(pytree.GetAttrKey(name), leaf(held))], context(held)),
        **dumps,
    )
    register_pytree_flatten_spec(kind, lambda held, spec: [leaf(held)])
