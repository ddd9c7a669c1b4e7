# SPDX-License-Identifier: Apache-2.0
"""shard(), and the Sharding that it makes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from flashmask import _nodes
from flashmask._arguments import boolean, choice, described, integer
from flashmask._partition import DIVISIONS, Partition, Prices
from flashmask.distributed._dropout import place_of_heads
from flashmask.distributed._exchange import Exchange
from flashmask.distributed._group import Group, agree, group_of
from flashmask.distributed._make import MAIN, Made, Options, make, masks_of, weights_of
from flashmask.distributed._means import global_mean, unsharded
from flashmask.distributed._report import ShardingExplanation, explain, plot
from flashmask.distributed._runs import tokens as tokens_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_SCHEMES = ("auto", "rows", "heads")
_GRADIENTS = ("reduced", "owner")


class Sharding:
    """Which tokens of a sequence each rank of a group holds, and how attention is computed over them.

    shard() makes it. It serves all layers for one batch; every rank makes its own. It is immutable.
    """

    scheme: str
    """ "rows" or "heads"."""
    tokens: int
    """Tokens of the whole sequence."""
    rank: int
    ranks: int
    partition: Partition
    """Which rank holds which runs of tokens."""
    deterministic: bool

    def __init__(self, group: Group, made: Made, options: Options) -> None:
        """Called by shard() only."""
        self.scheme, self.partition = made.scheme, made.partition
        self.tokens, self.rank, self.ranks = made.partition.tokens, group.rank, group.size
        self.masks = made.masks
        self.deterministic = options.deterministic
        self._group = group
        self._name = group.name
        self._runs = made.runs
        self._locals = made.locals
        self._whole_masks = {name: local.mask for name, local in made.locals.items()}
        self._tensors = {name: local.to_tensor() for name, local in made.locals.items()}
        self._kept = {name: local.kept for name, local in made.locals.items()}
        self._prices = Prices(options.query_heads, options.kv_heads, options.head_dim)
        self._held = tokens_of(made.runs[group.rank])
        self._nodes: dict[str, _nodes.Nodes] = {}
        self._place = None
        if made.scheme == "heads" and self.tokens:
            self._place = place_of_heads(made.locals[MAIN], group.device)

    @property
    def lengths(self) -> list[int]:
        """How many tokens each rank holds."""
        return [tokens_of(runs) for runs in self._runs]

    @cached_property
    def positions(self) -> Tensor:
        """The position of each of this rank's tokens in the sequence, int64 [tokens held] on the CPU."""
        runs = [torch.arange(begin, end) for begin, end in self._runs[self.rank]]
        return torch.cat(runs) if runs else torch.empty(0, dtype=torch.int64)

    def shard(self, *tensors: Tensor, dim: int = 1) -> Any:
        """Selects this rank's tokens from tensors whose dimension `dim` is the whole sequence; nothing is sent.

        Returns one tensor for one argument, a tuple for several. Differentiable.
        """
        parts = tuple(self._part(tensor, dim) for tensor in tensors)
        return parts[0] if len(parts) == 1 else parts

    def _part(self, tensor: Tensor, dim: int) -> Tensor:
        _check_tokens("a tensor", tensor, dim, self.tokens, "those of the sequence")
        runs = self._runs[self.rank] or [(0, 0)]
        return torch.cat([tensor.narrow(dim, begin, end - begin) for begin, end in runs], dim)

    def unshard(self, tensor: Tensor, dim: int = 1) -> Tensor:
        """Returns all tokens in order, on every rank, from what each rank holds of a tensor; a collective.

        Differentiable: a rank's gradient is the sum over all ranks of the gradients of its tokens, which is right where
        gradients are averaged over the ranks and each of them computes the same loss.
        """
        _check_tokens("tensor", tensor, dim, self._held, f"those that rank {self.rank} holds")
        return unsharded(tensor, dim, self._everything, self._group)

    @property
    def _everything(self) -> Exchange:
        return self._locals[MAIN].everything

    def mean(self, loss_sum: Tensor, count: Tensor | float, *, group: Any = None) -> Tensor:
        """Returns the mean loss over all ranks: the sum of their sums by the sum of their counts; a collective.

        `loss_sum` is the loss summed over this rank's tokens, and `count` how many of them have a label. The gradient
        is that of this rank's share times the number of ranks, so that averaging gradients over the ranks, as FSDP and
        DDP do, gives the gradient of the mean. `group`: all ranks whose gradients are averaged, if these are more than
        the ranks of the sharding.
        """
        check_plain("loss_sum", loss_sum)
        return global_mean(loss_sum, count, self._group if group is None else group_of(group))

    def nodes(self, mask: str = MAIN) -> _nodes.Nodes:
        """Returns the nodes of a mask of the whole sequence, found once; see flashmask.nodes()."""
        if mask not in self._nodes:
            self._nodes[mask] = _nodes.nodes(self.masks[self._known(mask)])
        return self._nodes[mask]

    def explain(self) -> ShardingExplanation:
        """Returns each rank's work under each mask: tokens, tiles, what it fetches and sends, and predicted times."""
        return explain(self.scheme, self.partition, self.masks, self._prices)

    def plot(self, path: str | os.PathLike[str] | None = None, *, mask: str = MAIN) -> Figure:
        """Draws a mask and, beside its rows, the ranks that hold them; saves the figure to `path` like Mask.plot()."""
        return plot(self.masks[self._known(mask)], self.partition, path)

    def _known(self, mask: Any) -> str:
        """Returns the name of a mask; raises ValueError if the sharding has no such mask."""
        if mask not in self.masks:
            raise ValueError(f"mask is {mask!r}; expected one of the sharding's masks: {', '.join(self.masks)}")
        name: str = mask
        return name

    def __repr__(self) -> str:
        return (
            f"<flashmask.distributed.Sharding of {self.tokens} tokens over {self.ranks} ranks, scheme={self.scheme}, "
            f"rank {self.rank} holds {self._held}, masks: {', '.join(self.masks)}>"
        )


def shard(
    mask: Any,
    group_or_mesh: Any,
    *,
    query_heads: int,
    kv_heads: int,
    head_dim: int,
    tokens: int | None = None,
    scheme: str = "auto",
    partition: str | Partition = "balanced",
    masks: Mapping[str, Any] | None = None,
    weights: Mapping[str, int] | None = None,
    aligned: bool = False,
    deterministic: bool = False,
    gradients: str = "reduced",
    keep_fetched: bool = False,
    head_groups: int = 1,
) -> Sharding:
    """Divides the tokens of a sequence among the ranks of a group, once per batch; a collective.

    Every rank calls it with the same arguments. If a rank fails, or was given other arguments, all ranks raise an error
    that names it.

    Args:
        mask: the mask of the whole sequence, as many rows as columns: a Mask; RowIndices, which are read on the host;
            integers [documents + 1], cumulative lengths of causal documents; None: everything is visible. Or a function
            without arguments that returns one of these; its errors reach all ranks.
        group_or_mesh: a ProcessGroup, or a DeviceMesh of one dimension, such as mesh["cp"], with Gloo or NCCL.
        query_heads: heads of q, the same in all layers; a multiple of `kv_heads`.
        kv_heads: heads of k and v.
        head_dim: head dim of q and k, or of v if that is larger.
        tokens: length of the sequence; needed if the mask is None, or cumulative lengths that end before it. Any other
            mask must have as many rows.
        scheme: "rows": each rank keeps its query rows and fetches the keys and values that they see. "heads": tokens
            become heads and back (Jacobs et al. 2023), which needs kv_heads to be a multiple of the number of ranks.
            "auto": the one that sends less.
        partition: "balanced": evens out tokens and work with little traffic; "contiguous": one run per rank;
            "zigzag": two runs per rank, one from either end; or a Partition.
        masks: further masks by name, for models that have several; attention(mask=name) chooses one.
        weights: how many layers each mask has, by name, "mask" for the first; 1 by default.
        aligned: cut at tiles only, so that results are the bits of one device even where other cuts would change them.
        deterministic: makes gradients the same bits on every run; those of q are the bits of one device.
        gradients: "reduced": each rank computes a part of the gradients of keys that it fetched, and sends it back;
            "owner": a rank fetches the rows that see its keys, and computes the gradients of its keys as one device
            would, to the bit. Implies `deterministic`.
        keep_fetched: keeps fetched keys and values for the backward, which otherwise fetches them again.
        head_groups: number of groups of heads that are fetched and computed in turn, which divides the memory that
            fetched tensors take.

    Raises:
        RuntimeError: on every rank, with what any rank failed with: "rank 3: ValueError: ...".
        ValueError: ranks were given different arguments.
    """
    group = group_of(group_or_mesh)
    try:
        options = Options(
            integer("query_heads", query_heads, minimum=1),
            integer("kv_heads", kv_heads, minimum=1),
            integer("head_dim", head_dim, minimum=1),
            _SCHEMES[choice("scheme", scheme, _SCHEMES)],
            partition if isinstance(partition, Partition) else DIVISIONS[choice("partition", partition, DIVISIONS)],
            boolean("aligned", aligned),
            boolean("deterministic", deterministic) or gradients == "owner",
            _GRADIENTS[choice("gradients", gradients, _GRADIENTS)],
            boolean("keep_fetched", keep_fetched),
            integer("head_groups", head_groups, minimum=1),
        )
        given = masks_of(mask, {} if masks is None else masks, tokens)
        made = make(given, weights_of(given, {} if weights is None else weights), group, options)
    except Exception as error:
        agree(group, {}, error)
        raise
    agree(group, made.fields, None)
    return Sharding(group, made, options)


def _check_tokens(name: str, tensor: Any, dim: int, count: int, which: str) -> None:
    check_plain(name, tensor)
    integer("dim", dim)
    if not -tensor.ndim <= dim < tensor.ndim or tensor.shape[dim] != count:
        raise ValueError(f"{name} has shape {list(tensor.shape)}; expected {count} tokens in dimension {dim}, {which}")


def check_plain(name: str, tensor: Any) -> None:
    """Refuses anything but a plain tensor; a DTensor already says how it is distributed."""
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} is {described(tensor)}; expected a torch tensor")
    if hasattr(tensor, "to_local"):
        raise TypeError(f"{name} is a DTensor; expected a plain tensor: pass {name}.to_local()")
