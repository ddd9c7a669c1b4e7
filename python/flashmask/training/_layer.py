# SPDX-License-Identifier: Apache-2.0
"""A decoder layer whose linear parts see a chunk of tokens at a time, and of which its input is kept alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from flashmask._arguments import described, integer
from flashmask.training._attention import HeldAttention
from flashmask.training._autocast import autocast_now
from flashmask.training._chunks import chunks, like
from flashmask.training._linear import joined, skipped
from flashmask.training._randomness import Randomness, undisturbed
from flashmask.training._sums import GradientSums

Heads: TypeAlias = tuple[Tensor, Tensor, Tensor]
Attend: TypeAlias = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class LayerParts:
    """A decoder layer, cut where tokens meet.

    before(hidden [B, c, H], place) gives q [B, c, Hq, D], k [B, c, Hkv, D] and v [B, c, Hkv, Dv] of the c tokens at
    slice `place` of the sequence; attend(q, k, v) of all tokens gives o [B, S, Hq, Dv]; after(hidden [B, c, H],
    o [B, c, Hq, Dv]) gives the layer's result [B, c, H]. `parameters` are those of before and after that have a
    gradient. `linear_before` and `linear_after`: linear layers whose results reach those of before and after through
    linear steps alone, so that no gradient needs them: they are not computed for gradients. `adapted`: layers of PEFT's
    LoRA, which add into the product they belong to. `random`: whether before or after draw random numbers.
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
    """Where a layer's input is until the backward wants it."""

    def take(self) -> Tensor:
        """The input, on the device."""


@dataclass
class OnDevice:
    """An input that stays where it is."""

    hidden: Tensor

    def take(self) -> Tensor:
        return self.hidden


@dataclass
class LayerRun:
    """One run of a layer: how it was made, and what of it is kept. ahead() is called when its backward begins."""

    parts: LayerParts
    chunk: int
    kept: Kept | None
    hold_attention: bool = False
    attention: HeldAttention | None = None
    autocast: Callable[[], AbstractContextManager[Any]] = field(default_factory=autocast_now)
    ahead: Callable[[], object] = lambda: None
    drawn: dict[str, Randomness] = field(default_factory=dict)

    def forward(self, hidden: Tensor) -> Tensor:
        """Where no gradient is recorded."""
        hidden = hidden.detach()
        with self.autocast(), joined(self.parts.adapted):
            o = self._attended(hidden)
            self._draw("after")
            out: Tensor | None = None
            for place in chunks(hidden.shape[1], self.chunk):
                of_chunk = self.parts.after(hidden[:, place], o[:, place])
                out = like(of_chunk, hidden.shape[1]) if out is None else out
                out[:, place] = of_chunk
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
        """The result once more, for the layer behind; the attention is held until this layer's own backward."""
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
        """Gradients of the input and of the parameters."""
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
        """q, k and v of all tokens, each in memory of its own."""
        self._draw("before")
        made: list[Tensor] = []
        with torch.no_grad():
            for place in chunks(hidden.shape[1], self.chunk):
                of_chunk = self.parts.before(hidden[:, place], place)
                made = made or [like(each, hidden.shape[1]) for each in of_chunk]
                for whole, part in zip(made, of_chunk, strict=True):
                    whole[:, place] = part
        q, k, v = made
        return q, k, v

    def _backward_after(self, hidden: Tensor, o: Tensor, grad: Tensor, sums: GradientSums) -> tuple[Tensor, Tensor]:
        grad_hidden, grad_o = torch.empty_like(hidden), torch.empty_like(o)
        self._draw("after")
        with skipped(self.parts.linear_after), torch.enable_grad():
            for place in chunks(hidden.shape[1], self.chunk):
                given = [each[:, place].detach().requires_grad_() for each in (hidden, o)]
                out = self.parts.after(*given)
                grad_hidden[:, place], grad_o[:, place] = self._gradients([out], given, [grad[:, place]], sums)
        return grad_hidden, grad_o

    def _backward_before(self, hidden: Tensor, grads: Heads, grad_hidden: Tensor, sums: GradientSums) -> None:
        """Adds to grad_hidden."""
        self._draw("before")
        with skipped(self.parts.linear_before), torch.enable_grad():
            for place in chunks(hidden.shape[1], self.chunk):
                given = hidden[:, place].detach().requires_grad_()
                heads = self.parts.before(given, place)
                of_chunk = [each[:, place] for each in grads]
                grad_hidden[:, place] += self._gradients(heads, [given], of_chunk, sums)[0]

    def _gradients(
        self, results: Sequence[Tensor], given: list[Tensor], grads: list[Tensor], sums: GradientSums
    ) -> tuple[Tensor, ...]:
        """Of what was given; those of the parameters go to the sums."""
        found = torch.autograd.grad(results, [*given, *self.parts.parameters], grads, allow_unused=True)
        sums.add(found[len(given) :])
        return found[: len(given)]

    def _draw(self, part: str) -> None:
        """Before the chunks of a part draw random numbers: the first time remembers where, and later ones go back."""
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
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        grad_hidden, grads = ctx.run.backward(grad)
        return None, grad_hidden, *grads


def run_layer(run: LayerRun, hidden: Tensor) -> Tensor:
    """The layer's result, which autograd knows as one step."""
    if not torch.is_grad_enabled():
        return replace(run, hold_attention=False).forward(hidden)
    out: Tensor = _Layer.apply(run, hidden, *run.parts.parameters)  # type: ignore[no-untyped-call]
    return out


def chunked_layer(parts: LayerParts, hidden: Tensor, *, chunk: int, hold_attention: bool = False) -> Tensor:
    """A decoder layer's result [B, S, H], of hidden [B, S, H], that runs all but attention on `chunk` tokens at a time.

    What is kept for the backward is `hidden`, and with hold_attention what attention saves, less q, k and v, which are
    made again either way. Results and gradients are those of the layer run at once, up to the rounding of sums over
    tokens. Chen et al. 2016 (Training Deep Nets with Sublinear Memory Cost), section 4.
    """
    integer("chunk", chunk, minimum=1)
    if not isinstance(parts, LayerParts):
        raise TypeError(f"parts is {described(parts)}; expected LayerParts")
    if hidden.ndim != 3:
        raise ValueError(f"hidden has shape {list(hidden.shape)}; expected [B, S, H]")
    return run_layer(LayerRun(parts, chunk, OnDevice(hidden.detach()), hold_attention), hidden)
