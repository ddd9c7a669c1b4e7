# SPDX-License-Identifier: Apache-2.0
"""causal_conv: the short convolution of layers with a state, along the predecessors that a mask gives each token."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flashmask._nodes import Nodes
from flashmask.recurrent._batch import nodes_of_batch, on_device

# Numbers computed at a time: what a core's cache holds, and on a GPU what keeps it busy.
_NUMBERS = {"cpu": 1 << 18, "cuda": 1 << 27}


def causal_conv(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, nodes: Nodes) -> Tensor:
    """Convolves each channel over a token and its predecessors, as causal depthwise convolutions do over time.

    x: (batch, sequence, channels), float32, bfloat16, float16 or float64. weight: (channels, width), or
    (channels, 1, width) as torch.nn.Conv1d keeps it; weight[:, -1] belongs to the token itself. bias: (channels) or
    None. nodes: flashmask.nodes(mask); of the whole batch, or of one entry, for each.

    Returns (batch, sequence, channels) in the dtype of x: bias + sum of weight[:, width - 1 - k] times x of the k-th
    predecessor, where there is one; sums in float32 at least. Tokens of padding get zeros. A document has the bits that
    it has alone, and what is not seen is not read, NaN or not. Differentiable any number of times.
    """
    of_channels = weight[:, 0] if weight.ndim == 3 and weight.shape[1] == 1 else weight
    if x.ndim != 3:
        raise ValueError(f"x has shape {list(x.shape)}; expected (batch, sequence, channels)")
    if of_channels.ndim != 2 or len(of_channels) != x.shape[2] or of_channels.shape[1] == 0:
        raise ValueError(
            f"weight has shape {list(weight.shape)}; expected ({x.shape[2]}, width) or ({x.shape[2]}, 1, width), one "
            "row per channel of x"
        )
    if bias is not None and bias.shape != x.shape[2:]:
        raise ValueError(f"bias has shape {list(bias.shape)}; expected ({x.shape[2]},), a number per channel of x")
    chains = _chains_of(nodes_of_batch(nodes, "x", x), of_channels.shape[1], x.device)
    y: Tensor = _CausalConv.apply(x.reshape(-1, x.shape[2]), of_channels, bias, chains)  # type: ignore[no-untyped-call]
    return y.reshape(x.shape)


@dataclass(frozen=True)
class _Chains:
    """Which tokens are not behind the `width` - 1 tokens before them in memory, and what they are behind.

    All that a layer needs is made here, once per mask: a choice by booleans in a layer would wait for the device.
    """

    broken: Tensor
    """These tokens, ascending."""
    is_broken: Tensor
    """Whether each of all tokens is one of them, (tokens, 1)."""
    before: Tensor
    """before[k]: the k-th predecessor of each broken token, 0 where there is none, (width, broken)."""
    exists: Tensor
    """exists[k]: whether there is one, (width, broken, 1)."""
    pairs: Tensor
    """Places of those that exist in `before`, counted through all k."""
    reached: Tensor
    """The tokens among them, each once, ascending."""
    slots: Tensor
    """Place of each pair's token in `reached`."""
    padding: Tensor
    """Tokens in no node."""


def _chains_of(nodes: Nodes, width: int, device: torch.device) -> _Chains:
    return nodes.kept(("chains", width, device), lambda: _make_chains(nodes, width, device))


def _make_chains(nodes: Nodes, width: int, device: torch.device) -> _Chains:
    # A chain breaks where a node begins; the width - 1 tokens behind notice.
    near = (nodes.begins[:, None] + np.arange(width - 1)).reshape(-1)
    ends = np.repeat(nodes.ends, width - 1)
    broken = np.union1d(near[near < ends], nodes.padding)
    # A node shorter than the width breaks chains of the nodes behind it, which begin there and are in `near` too.
    predecessors = np.append(nodes.predecessors, -1)
    chain = [np.where(np.isin(broken, nodes.padding), -1, broken)]
    for _ in range(width - 1):
        chain.append(predecessors[chain[-1]])
    before = np.stack(chain)
    pairs = np.flatnonzero(before >= 0)
    reached, slots = np.unique(before.reshape(-1)[pairs], return_inverse=True)
    return _Chains(
        on_device(broken, device),
        on_device(np.isin(np.arange(nodes.tokens), broken)[:, None], device),
        on_device(np.maximum(before, 0), device),
        on_device((before >= 0)[..., None], device),
        *(on_device(each, device) for each in (pairs, reached, slots.reshape(-1), nodes.padding)),
    )


class _CausalConv(torch.autograd.Function):
    """x (tokens, channels), weight (channels, width)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, chains: _Chains) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.chains, ctx.bias_dtype = chains, None if bias is None else bias.dtype
        taps = _taps(weight, x.dtype)
        y = torch.empty_like(x)
        for begin, end in _pieces(x):
            total = _times(x[begin:end], taps[0])
            for k, tap in enumerate(taps[1:], 1):
                first = max(begin, k)
                if first < end:
                    total[first - begin :].addcmul_(x[first - k : end - k].to(tap.dtype), tap)
            y[begin:end] = total if bias is None else total.add_(bias)
        if len(chains.broken):
            behind = _behind(x, chains, taps[0].dtype)
            total = behind[0] * taps[0]
            for before, tap in zip(behind[1:], taps[1:], strict=True):
                total.addcmul_(before, tap)
            y[chains.broken] = (total if bias is None else total.add_(bias)).to(x.dtype)
        if len(chains.padding):
            y[chains.padding] = 0
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        x, weight = ctx.saved_tensors
        chains: _Chains = ctx.chains
        taps = _taps(weight, x.dtype)
        of_broken = torch.where(chains.exists[0], grad[chains.broken].to(taps[0].dtype), 0)
        whole = grad.index_fill(0, chains.broken, 0) if len(chains.broken) else grad
        grad_x = _grad_x(whole, of_broken, taps, chains) if ctx.needs_input_grad[0] else None
        grad_weight = _grad_weight(x, whole, of_broken, taps, chains) if ctx.needs_input_grad[1] else None
        grad_bias = None
        if ctx.bias_dtype is not None and ctx.needs_input_grad[2]:
            grad_bias = sum((whole[a:b].sum(0, dtype=taps[0].dtype) for a, b in _pieces(x)), of_broken.sum(0))
            grad_bias = grad_bias.to(ctx.bias_dtype)
        return grad_x, None if grad_weight is None else grad_weight.to(weight.dtype), grad_bias, None


def _grad_x(whole: Tensor, of_broken: Tensor, taps: list[Tensor], chains: _Chains) -> Tensor:
    tokens = len(whole)
    grad_x = torch.empty_like(whole)
    for begin, end in _pieces(whole):
        total = _times(whole[begin:end], taps[0])
        for k, tap in enumerate(taps[1:], 1):
            last = min(end + k, tokens)
            if begin + k < last:
                total[: last - begin - k].addcmul_(whole[begin + k : last].to(tap.dtype), tap)
        grad_x[begin:end] = total
    if len(chains.broken):
        # In a tensor of the sums' dtype, of the tokens that broken ones are behind alone.
        parts = (of_broken * torch.stack(taps)[:, None]).flatten(0, 1).index_select(0, chains.pairs)
        sums = grad_x.index_select(0, chains.reached).to(parts.dtype)
        if sums.is_cuda:
            sums.index_put_((chains.slots,), parts, accumulate=True)  # sorts: no two runs differ
        else:
            sums.index_add_(0, chains.slots, parts)
        grad_x[chains.reached] = sums.to(grad_x.dtype)
    return grad_x


def _grad_weight(x: Tensor, whole: Tensor, of_broken: Tensor, taps: list[Tensor], chains: _Chains) -> Tensor:
    dtype = taps[0].dtype
    found = list((of_broken * _behind(x, chains, dtype)).sum(1))
    behind = len(taps) - 1
    for begin, end in _pieces(x):
        start = max(begin - behind, 0)
        of_piece, before = whole[begin:end].to(dtype), x[start:end].to(dtype)
        for k in range(len(taps)):
            first = max(begin, k)
            if first < end:
                products = of_piece[first - begin :] * before[first - k - start : end - k - start]
                # `whole` is 0 for broken tokens, and what lies before them in memory may be NaN.
                found[k] = found[k] + products.masked_fill_(chains.is_broken[first:end], 0).sum(0)
    return torch.stack(found[::-1], 1)


def _taps(weight: Tensor, dtype: torch.dtype) -> list[Tensor]:
    """Returns the weights of a token, of its predecessor and so on, (channels), in the dtype of sums."""
    return list(weight.to(torch.promote_types(dtype, torch.float32)).t().flip(0).contiguous())


def _times(x: Tensor, tap: Tensor) -> Tensor:
    return x.to(tap.dtype) * tap


def _behind(x: Tensor, chains: _Chains, dtype: torch.dtype) -> Tensor:
    """Returns x of the predecessors of the broken tokens, (width, broken, channels), zeros where there is none."""
    return torch.where(chains.exists, x[chains.before].to(dtype), 0)


def _pieces(x: Tensor) -> Iterator[tuple[int, int]]:
    """Yields (begin, end) of runs of tokens that are computed at a time."""
    step = max(_NUMBERS.get(x.device.type, 1 << 27) // max(x.shape[1], 1), 1)
    for begin in range(0, len(x), step):
        yield begin, min(begin + step, len(x))
