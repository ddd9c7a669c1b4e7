"""What the operators are called and take, and how they are called from Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor

Outputs: TypeAlias = tuple[Tensor, Tensor]
Gradients: TypeAlias = tuple[Tensor, Tensor, Tensor]

# A fragment, since another extension in the process may define the namespace, before or after us.
LIBRARY: Any = torch.library.Library("flashmask", "FRAGMENT")  # type: ignore[no-untyped-call]
_MASK = (
    "Tensor? mask, Tensor? block_mask, bool causal, float scale, float dropout, Tensor? seed_offset, "
    "bool deterministic=False"
)
LIBRARY.define(f"forward(Tensor q, Tensor k, Tensor v, {_MASK}) -> (Tensor o, Tensor lse)")
LIBRARY.define(
    f"backward(Tensor grad_o, Tensor? grad_lse, Tensor q, Tensor k, Tensor v, Tensor o, Tensor lse, {_MASK}) "
    "-> (Tensor dq, Tensor dk, Tensor dv)"
)
LIBRARY.define("snapshot(Tensor mask) -> Tensor")
forward_operator: Callable[..., Outputs] = torch.ops.flashmask.forward.default
backward_operator: Callable[..., Gradients] = torch.ops.flashmask.backward.default
snapshot_operator: Callable[[Tensor], Tensor] = torch.ops.flashmask.snapshot.default
