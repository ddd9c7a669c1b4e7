# SPDX-License-Identifier: Apache-2.0
"""over_nodes: runs a recurrence of packed sequences over the nodes of a mask."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from flashmask._arguments import IntArray
from flashmask._nodes import Nodes
from flashmask.recurrent._batch import nodes_of_batch, on_device
from flashmask.recurrent._states import changed


def over_nodes(
    run: Callable[..., Any],
    nodes: Nodes,
    *inputs: Tensor | None,
    initial_state: Any = None,
    output_final_state: bool = False,
) -> Any:
    """Runs a recurrence so that its states begin, end and fork where the mask says, whatever lies beside a sequence.

    run: a recurrence of packed sequences, called once per level of the tree (once for documents, twice for prompts with
        answers) as run(*inputs, cu_seqlens=, initial_state=, output_final_state=) with tensors (1, tokens, ...), the
        sequences one after the other, cu_seqlens int64 [sequences + 1] and states (sequences, ...) or None. It returns
        (output, state), or the output alone where output_final_state is False. The kernels of flash-linear-attention
        (chunk_gated_delta_rule, chunk_kda, chunk_gla, ...) are such functions, with their other arguments bound by a
        lambda or functools.partial; one_by_one() makes one of a function for one sequence.
    nodes: flashmask.nodes(mask); of the whole batch, or of one entry, for each.
    inputs: tensors (batch, sequence, ...), or None, in the order that `run` takes them.
    initial_state: states (roots, ...) for the nodes without a parent, in their order; None: zero.

    Returns the output, (batch, sequence, ...), zeros for padding; with output_final_state also the states (nodes, ...)
    behind each node. Each branch starts from its parent's last state; gradients of branches are added in their order.
    """
    first = next((each for each in inputs if each is not None), None)
    if first is None:
        raise ValueError("over_nodes: there are no inputs; expected at least one tensor (batch, sequence, ...)")
    for number, each in enumerate(inputs):
        if each is not None and each.shape[:2] != first.shape[:2]:
            raise ValueError(
                f"input {number} has shape {list(each.shape)}; expected the batch and sequence of the first, "
                f"{list(first.shape[:2])}"
            )
    levels = _levels_of(nodes_of_batch(nodes, "the first input", first), first.device)
    _check_initial(initial_state, levels)
    flat = [None if each is None else each.reshape(1, -1, *each.shape[2:]) for each in inputs]
    outputs, states = [], []
    state = initial_state
    for level in levels.each:
        wants_state = output_final_state or level.has_children
        given = (
            flat if level.is_all else [None if each is None else each.index_select(1, level.tokens) for each in flat]
        )
        found = run(
            *given, cu_seqlens=level.cu_seqlens, initial_state=level.first_states(state), output_final_state=wants_state
        )
        output, state = found if isinstance(found, tuple) else (found, None)
        if wants_state and state is None:
            raise ValueError("over_nodes: run() returned no state although output_final_state is True")
        outputs.append(output)
        states.append(state)
    if not outputs:
        raise ValueError("over_nodes: the mask has no nodes: every token is padding")
    whole = levels.in_order(outputs)
    whole = whole.reshape(*first.shape[:2], *whole.shape[2:])
    if not output_final_state:
        return whole
    return whole, changed(lambda *parts: torch.cat(parts).index_select(0, levels.order_of_nodes), *states)


@dataclass(frozen=True)
class _Level:
    """The nodes of one level."""

    tokens: Tensor
    """Their tokens, one node after the other."""
    cu_seqlens: Tensor
    forks: _Forks | None
    """Their parents in the level above; None: they are roots."""
    has_children: bool
    is_all: bool
    """Whether their tokens are all tokens, in order."""

    def first_states(self, states: Any) -> Any:
        """Returns the states that they start from, given those behind the level above, or the initial ones."""
        if self.forks is None or states is None:
            return states
        return changed(lambda state: _Forked.apply(state, self.forks), states)  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class _Forks:
    """The parents of a level's nodes, on the device: to bring them there in each layer would wait for it."""

    parents: Tensor
    """Numbers of the parents among the nodes of the level above, ascending."""
    turns: list[tuple[Tensor, Tensor]]
    """Parents and children: the first child of each parent, then the second ones, and so on."""

    @classmethod
    def of(cls, parents: IntArray, device: torch.device) -> _Forks:
        turn = np.arange(len(parents)) - np.searchsorted(parents, parents)
        children = [np.flatnonzero(turn == number) for number in range(int(turn.max(initial=-1)) + 1)]
        turns = [(on_device(parents[each], device), on_device(each, device)) for each in children]
        return cls(on_device(parents, device), turns)


class _Forked(torch.autograd.Function):
    """Takes a parent's state for each child; children's gradients are added in ascending order, without atomics."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, forks: _Forks) -> Tensor:
        ctx.forks, ctx.count = forks, len(states)
        return states.index_select(0, forks.parents)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        total = grad.new_zeros(ctx.count, *grad.shape[1:])
        for parents, children in ctx.forks.turns:  # no parent twice in one addition
            total[parents] += grad[children]
        return total, None


@dataclass(frozen=True)
class _Levels:
    each: list[_Level]
    positions: Tensor
    """Where each token lies among the tokens of all levels, one level after the other; behind them for padding."""
    order_of_nodes: Tensor
    """Where each node lies among the nodes of all levels."""
    roots: int

    def in_order(self, outputs: list[Tensor]) -> Tensor:
        """Puts the outputs of the levels, (1, tokens, ...), in the order of tokens; zeros for padding."""
        if self.each[0].is_all:
            return outputs[0]
        padding = outputs[0].new_zeros(1, 1, *outputs[0].shape[2:])
        return torch.cat([*outputs, padding], 1).index_select(1, self.positions)


def _levels_of(nodes: Nodes, device: torch.device) -> _Levels:
    return nodes.kept(("levels", device), lambda: _make_levels(nodes, device))


def _make_levels(nodes: Nodes, device: torch.device) -> _Levels:
    each: list[_Level] = []
    numbers = [np.flatnonzero(nodes.levels == level) for level in range(nodes.depth)]
    number_in_level = np.zeros(len(nodes), np.int64)
    positions, done = np.full(nodes.tokens, -1, np.int64), 0
    for level, chosen in enumerate(numbers):
        number_in_level[chosen] = np.arange(len(chosen))
        lengths = nodes.ends[chosen] - nodes.begins[chosen]
        cuts = np.concatenate([[0], np.cumsum(lengths)])
        tokens = np.arange(cuts[-1]) + np.repeat(nodes.begins[chosen] - cuts[:-1], lengths)
        positions[tokens] = np.arange(done, done + len(tokens))
        done += len(tokens)
        forks = _Forks.of(number_in_level[nodes.parents[chosen]], device) if level else None
        is_all = len(tokens) == nodes.tokens
        each.append(_Level(on_device(tokens, device), on_device(cuts, device), forks, level + 1 < nodes.depth, is_all))
    positions[positions < 0] = done
    order = np.argsort(np.concatenate([*numbers, np.empty(0, np.int64)]).astype(np.int64))
    roots = len(numbers[0]) if numbers else 0
    return _Levels(each, on_device(positions, device), on_device(order, device), roots)


def _check_initial(initial_state: Any, levels: _Levels) -> None:
    for state in tree_leaves(initial_state):
        if state is not None and len(state) != levels.roots:
            raise ValueError(
                f"initial_state has shape {list(state.shape)}; expected ({levels.roots}, ...), a state for each of the "
                "mask's roots"
            )
