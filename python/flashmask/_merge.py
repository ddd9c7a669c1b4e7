"""merge(): attention over two sets of keys from attention over each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flashmask._arguments import described, is_tensor

if TYPE_CHECKING:
    from torch import Tensor


def merge(o1: Tensor, lse1: Tensor, o2: Tensor, lse2: Tensor) -> tuple[Tensor, Tensor]:
    """Joins attention of the same queries over disjoint keys, as if it had been computed over all of them.

    Ring attention, chunked prefill and caches split keys that way: Milakov and Gimelshein 2018, section 3.1.

    Args:
        o1, o2: (batch, query length, heads, value dim), or (total, heads, value dim) of varlen_attention().
        lse1, lse2: (batch, heads, query length), or (heads, total): what attention returned with each.

    Returns:
        o, of the shape and dtype of o1, and lse, of those of lse1. Differentiable in all four. A row that saw nothing
        on either side has o = 0, lse = -inf and passes no gradient on.
    """
    _check(o1, lse1, o2, lse2)
    import torch

    largest = torch.maximum(lse1, lse2)
    # exp(-inf - -inf) is a NaN, and 0 · NaN a NaN in its gradient: rows that saw nothing take a finite maximum.
    shift = torch.where(largest == -torch.inf, 0.0, largest).detach()
    weight1, weight2 = torch.exp(lse1 - shift), torch.exp(lse2 - shift)
    total = weight1 + weight2
    seen = total > 0
    divisor = torch.where(seen, total, 1.0)
    o = o1 * _beside_o(weight1 / divisor) + o2 * _beside_o(weight2 / divisor)
    lse = torch.where(seen, torch.log(divisor) + shift, -torch.inf)
    return o.to(o1.dtype), lse


def _beside_o(weight: Tensor) -> Tensor:
    """(…, heads, rows) as (…, rows, heads, 1)."""
    return weight.transpose(-1, -2).unsqueeze(-1)


def _check(o1: Tensor, lse1: Tensor, o2: Tensor, lse2: Tensor) -> None:
    for name, tensor in (("o1", o1), ("lse1", lse1), ("o2", o2), ("lse2", lse2)):
        if not is_tensor(tensor):
            raise TypeError(f"{name} is {described(tensor)}; expected a torch tensor")
    if o1.ndim not in (3, 4):
        raise ValueError(
            f"o1 has shape {list(o1.shape)}; expected (batch, query length, heads, value dim) or (total, heads, value "
            "dim)"
        )
    rows = (*o1.shape[:-3], o1.shape[-2], o1.shape[-3])
    for name, tensor, expected, like in (
        ("o2", o2, tuple(o1.shape), o1),
        ("lse1", lse1, rows, lse1),
        ("lse2", lse2, rows, lse1),
    ):
        if tuple(tensor.shape) != expected:
            raise ValueError(f"{name} has shape {list(tensor.shape)}; expected {list(expected)}, that of o1")
        if tensor.dtype != like.dtype or tensor.device != o1.device:
            raise TypeError(f"{name} is {tensor.dtype} on {tensor.device}; expected {like.dtype} on {o1.device}")
