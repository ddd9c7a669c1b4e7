# SPDX-License-Identifier: Apache-2.0
"""A decoder layer that runs all but attention on one chunk of tokens at a time and keeps only its input."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor, nn

from flashmask._arguments import described, integer
from flashmask._torch.autograd import once_differentiable
from flashmask.training._attention import HeldAttention
from flashmask.training._autocast import autocast_now
from flashmask.training._chunks import IN_CHUNKS, chunks, like
from flashmask.training._linear import joined, skipped
from flashmask.training._randomness import Randomness, undisturbed
from flashmask.training._sums import GradientSums

Heads: TypeAlias = tuple[Tensor, Tensor, Tensor]
Attend: TypeAlias = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class LayerParts:
    """A decoder layer, cut before and after attention, the only step in which tokens meet.

    before(hidden [B, c, H], span) returns q [B, c, Hq, D], k [B, c, Hkv, D] and v [B, c, Hkv, Dv] of the c tokens at
    slice `span` of the sequence; attend(q, k, v) of all tokens returns o [B, S, Hq, Dv]; after(hidden [B, c, H],
    o [B, c, Hq, Dv]) returns the layer's result [B, c, H]. `parameters`: those of before and after that need a
    gradient. `linear_before` and `linear_after`: linear layers from whose results only linear steps lead to the result
    of before or after; no gradient depends on their values, so the backward does not compute them. `adapted`: PEFT's
    LoRA layers, which add into the memory of the large product. `random`: whether before or after draw random numbers.
    """

    before: Callable[[Tensor, slice], Heads]
    attend: Attend
    after: Callable[[Tensor, Tensor], Tensor]
    parameters: Sequence[Tensor]
    linear_before: Sequence[nn.Module] = ()
    linear_after: Sequence[nn.Module] = ()
    adapted: Sequence[nn.Module] = ()
    random: bool = False


class Kept(Protocol):
    """Holder of a layer's input until the backward needs it."""

    def take(self) -> Tensor:
        """Returns the input, on the device."""


@dataclass
class OnDevice:
    """An input that stays on the device."""

    hidden: Tensor

    def take(self) -> Tensor:
        return self.hidden


@dataclass
class LayerRun:
    """One run of a layer: its settings, and what it keeps for the backward. ahead() is called when that begins."""

    parts: LayerParts
    chunk: int
    kept: Kept | None
    hold_attention: bool = False
    attention: HeldAttention | None = None
    autocast: Callable[[], AbstractContextManager[Any]] = field(default_factory=autocast_now)
    ahead: Callable[[], object] = lambda: None
    drawn: dict[str, Randomness] = field(default_factory=dict)

    def forward(self, hidden: Tensor) -> Tensor:
        """Computes the layer's result while no gradient is recorded."""
        hidden = hidden.detach()
        with self.autocast(), joined(self.parts.adapted):
            o = self._attended(hidden)
            self._draw("after")
            out: Tensor | None = None
            for span in chunks(hidden.shape[1], self.chunk):
                of_chunk = self.parts.after(hidden[:, span], o[:, span])
                out = like(of_chunk, hidden.shape[1]) if out is None else out
                out[:, span] = of_chunk
        return hidden.clone() if out is None else out

    def _attended(self, hidden: Tensor) -> Tensor:
        if self.attention is not None:
            return self.attention.o
        heads = self._heads(hidden)
        if not self.hold_attention:
            return self.parts.attend(*heads)
        self.attention = HeldAttention(self.parts.attend, *heads)
        self.attention.forget()
        return self.attention.o

    def again(self) -> Tensor:
        """Computes the result again, for the next layer; holds the attention until this layer's own backward."""
        hidden = self.input()
        self.kept = OnDevice(hidden)
        self.hold_attention = True
        with self._drawing_again(), torch.no_grad():
            return self.forward(hidden)

    def input(self) -> Tensor:
        if self.kept is None:
            raise RuntimeError(
                "the backward of a layer in chunks ran twice; its input is kept for one: run the forward again"
            )
        return self.kept.take()

    def backward(self, grad: Tensor) -> tuple[Tensor, list[Tensor | None]]:
        """Returns the gradients of the input and of the parameters."""
        hidden = self.input()
        self.ahead()
        with self.autocast(), self._drawing_again(), joined(self.parts.adapted):
            q, k, v = self._heads(hidden)
            if self.attention is None:
                self.attention = HeldAttention(self.parts.attend, q, k, v)
            else:
                self.attention.refill(q, k, v)
            del q, k, v
            attention, sums = self.attention, GradientSums(self.parts.parameters)
            grad_hidden, grad_o = self._backward_after(hidden, attention.o, grad, sums)
            self.attention = None
            gradients = attention.backward(grad_o)
            del attention, grad_o
            self._backward_before(hidden, gradients, grad_hidden, sums)
        self.kept = None
        return grad_hidden, sums.result()

    def _heads(self, hidden: Tensor) -> Heads:
        """Computes q, k and v of all tokens, each in its own memory."""
        self._draw("before")
        made: list[Tensor] = []
        with torch.no_grad():
            for span in chunks(hidden.shape[1], self.chunk):
                of_chunk = self.parts.before(hidden[:, span], span)
                made = made or [like(each, hidden.shape[1]) for each in of_chunk]
                for whole, part in zip(made, of_chunk, strict=True):
                    whole[:, span] = part
        q, k, v = made
        return q, k, v

    def _backward_after(self, hidden: Tensor, o: Tensor, grad: Tensor, sums: GradientSums) -> tuple[Tensor, Tensor]:
        grad_hidden, grad_o = torch.empty_like(hidden), torch.empty_like(o)
        self._draw("after")
        with skipped(self.parts.linear_after), torch.enable_grad():
            for span in chunks(hidden.shape[1], self.chunk):
                given = [each[:, span].detach().requires_grad_() for each in (hidden, o)]
                out = self.parts.after(*given)
                grad_hidden[:, span], grad_o[:, span] = self._gradients([out], given, [grad[:, span]], sums)
        return grad_hidden, grad_o

    def _backward_before(self, hidden: Tensor, grads: Heads, grad_hidden: Tensor, sums: GradientSums) -> None:
        """Runs the backward of before(); adds to grad_hidden."""
        self._draw("before")
        with skipped(self.parts.linear_before), torch.enable_grad():
            for span in chunks(hidden.shape[1], self.chunk):
                given = hidden[:, span].detach().requires_grad_()
                heads = self.parts.before(given, span)
                of_chunk = [each[:, span] for each in grads]
                grad_hidden[:, span] += self._gradients(heads, [given], of_chunk, sums)[0]

    def _gradients(
        self, results: Sequence[Tensor], given: list[Tensor], grads: list[Tensor], sums: GradientSums
    ) -> tuple[Tensor, ...]:
        """Returns the gradients of `given`; adds those of the parameters to the sums."""
        found = torch.autograd.grad(results, [*given, *self.parts.parameters], grads, allow_unused=True)
        sums.add(found[len(given) :])
        return found[: len(given)]

    def _draw(self, part: str) -> None:
        """Prepares a part that draws random numbers: records their state the first time, and restores it later."""
        if not self.parts.random:
            return
        if part in self.drawn:
            self.drawn[part].restore()
        else:
            self.drawn[part] = Randomness.now()

    def _drawing_again(self) -> AbstractContextManager[None]:
        return undisturbed() if self.parts.random else nullcontext()


class _Layer(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, run: LayerRun, hidden: Tensor, *parameters: Tensor) -> Tensor:
        ctx.run = run
        return run.forward(hidden)

    @staticmethod
    @once_differentiable(IN_CHUNKS)
    def backward(ctx: Any, grad: Tensor) -> Any:
        grad_hidden, grads = ctx.run.backward(grad)
        return None, grad_hidden, *grads


def run_layer(run: LayerRun, hidden: Tensor) -> Tensor:
    """Runs the layer as one step of autograd."""
    if not torch.is_grad_enabled():
        return replace(run, hold_attention=False).forward(hidden)
    out: Tensor = _Layer.apply(run, hidden, *run.parts.parameters)  # type: ignore[no-untyped-call]
    return out


def chunked_layer(parts: LayerParts, hidden: Tensor, *, chunk: int, hold_attention: bool = False) -> Tensor:
    """Runs a decoder layer on hidden [B, S, H], all but attention on `chunk` tokens at a time; returns [B, S, H].

    Only `hidden` is kept for the backward, and with hold_attention also what attention saves, except q, k and v, which
    are computed again either way. Results and gradients are those of the layer run at once, up to the rounding of sums
    over tokens. Chen et al. 2016 (Training Deep Nets with Sublinear Memory Cost), section 4.
    """
    integer("chunk", chunk, minimum=1)
    if not isinstance(parts, LayerParts):
        raise TypeError(f"parts is {described(parts)}; expected LayerParts")
    if hidden.ndim != 3:
        raise ValueError(f"hidden has shape {list(hidden.shape)}; expected [B, S, H]")
    return run_layer(LayerRun(parts, chunk, OnDevice(hidden.detach()), hold_attention), hidden)
