# SPDX-License-Identifier: Apache-2.0
"""Losses and log-probabilities of a linear layer, in chunks of rows: only the logits of one chunk ever exist."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypedDict, overload

import torch
from torch import Tensor
from torch.nn.functional import linear, log_softmax

from flashmask._arguments import boolean, choice, described, integer, is_autocast
from flashmask._torch.autograd import once_differentiable
from flashmask.data._examples import IGNORED
from flashmask.training._chunks import chunks
from flashmask.training._liger import ONCE, by_liger, uses_liger

if TYPE_CHECKING:
    from typing_extensions import Unpack

    class _Options(TypedDict, total=False):
        bias: Tensor | None
        ignore_index: int
        softcap: float | None
        temperature: float
        chunk: int


#: Rows per chunk: 5.3 GB for 128,256 words: logits in bfloat16 and in float32, and their log-probabilities.
ROWS = 4096
_REDUCTIONS = ("mean", "sum")


class _Head(NamedTuple):
    """The layer that makes logits [rows, V] from hidden states [rows, H]."""

    weight: Tensor
    bias: Tensor | None
    softcap: float | None

    def logits(self, hidden: Tensor) -> tuple[Tensor, Tensor | None]:
        """Returns logits [rows, V], and their tanh if there is a cap; the logits are softcap times that."""
        logits = linear(hidden, self.weight, self.bias)
        if self.softcap is None:
            return logits, None
        tanh = logits.div_(self.softcap).tanh_()
        return tanh * self.softcap, tanh


def _below_cap(gradient: Tensor, tanh: Tensor | None) -> Tensor:
    """Returns the gradient of the logits before the cap."""
    found: Tensor = gradient if tanh is None else torch.ops.aten.tanh_backward(gradient, tanh)
    return found


def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    labels: Tensor,
    *,
    bias: Tensor | None = None,
    reduction: str = "mean",
    ignore_index: int = IGNORED,
    softcap: float | None = None,
    chunk: int | None = None,
) -> Tensor:
    """Computes cross-entropy of hidden · weightᵀ + bias against labels, a float32 scalar, without logits of all rows.

    hidden [..., H], weight [V, H], bias [V], labels int64 [...]: the word that each row is to predict, already shifted;
    rows whose label is ignore_index cost nothing. softcap: logits become softcap · tanh(logits / softcap), as in Gemma.
    reduction "mean" divides by the number of rows that have a label, as torch's cross_entropy does. The logits of
    `chunk` rows exist at once, in the dtype of hidden; sums over words are in float32. Gradients are computed along
    with the loss: three products in all, two if the weight is frozen. Waits for the device once, to find the rows that
    have a label. Without `chunk`, Liger's kernel computes 16-bit rows on a GPU if liger_kernel is installed, in its own
    chunks, which take at most twice the memory of hidden. Raises ValueError and TypeError for shapes and labels that do
    not match.
    """
    choice("reduction", reduction, _REDUCTIONS)
    _check_head(hidden, _Head(weight, bias, softcap))
    rows, wanted = _labelled(hidden, weight, labels, ignore_index, ROWS if chunk is None else chunk)
    if chunk is None and uses_liger(rows, weight) and rows.numel():
        total = by_liger(rows, weight, wanted, bias, softcap)
    else:
        total = _CrossEntropy.apply(rows, weight, bias, wanted, softcap, chunk or ROWS)  # type: ignore[no-untyped-call]
    return total / wanted.shape[0] if reduction == "mean" else total


@overload
def linear_log_probs(
    hidden: Tensor, weight: Tensor, labels: Tensor, *, entropies: Literal[False] = ..., **options: Unpack[_Options]
) -> Tensor: ...


@overload
def linear_log_probs(
    hidden: Tensor, weight: Tensor, labels: Tensor, *, entropies: Literal[True], **options: Unpack[_Options]
) -> tuple[Tensor, Tensor]: ...


def linear_log_probs(
    hidden: Tensor,
    weight: Tensor,
    labels: Tensor,
    *,
    bias: Tensor | None = None,
    ignore_index: int = IGNORED,
    softcap: float | None = None,
    temperature: float = 1.0,
    entropies: bool = False,
    chunk: int = ROWS,
) -> Tensor | tuple[Tensor, Tensor]:
    """Returns the log-probability of each row's label, float32 in the shape of labels, 0 where that is ignore_index.

    Arguments are those of linear_cross_entropy(). For losses that compare sums of log-probabilities, such as DPO's, and
    for updates of policies: logits are divided by `temperature`, behind the cap, as those are from which a policy
    drew; entropies=True also returns the entropy of each row's distribution, in the same shape, which is differentiable
    too. The backward computes each chunk's logits again: four products in all.
    """
    _check_head(hidden, _Head(weight, bias, softcap))
    if not (isinstance(temperature, (int, float)) and temperature > 0):
        raise ValueError(f"temperature is {described(temperature)}; expected a number above 0")
    rows, wanted = _labelled(hidden, weight, labels, ignore_index, chunk)
    options = float(temperature), boolean("entropies", entropies), chunk
    found, entropy = _LogProbs.apply(rows, weight, bias, wanted, softcap, *options)  # type: ignore[no-untyped-call]

    def spread(each: Tensor) -> Tensor:
        return each.new_zeros(labels.shape).masked_scatter(labels != ignore_index, each)

    return (spread(found), spread(entropy)) if entropies else spread(found)


def answer_log_probs(
    hidden: Tensor,
    weight: Tensor,
    packed: Mapping[str, Tensor],
    *,
    bias: Tensor | None = None,
    softcap: float | None = None,
    chunk: int = ROWS,
) -> Tensor:
    """Computes flashmask.data.answer_log_probs() without the logits: float32 [A], the sum over each answer's tokens.

    hidden [B, length, H] is the input of the model's head for `packed`, a batch of pack(), such as
    model.base_model(...).last_hidden_state of a causal language model of Transformers; weight [V, H] is the head's.
    Rafailov et al. 2023 (Direct Preference Optimization), equation 7.
    """
    missing = [name for name in ("answers", "answer_ids", "predictors") if name not in packed]
    if missing:
        raise ValueError(f"packed has no {missing[0]}; expected a batch that pack() made of examples with answers")
    if hidden.ndim != 3 or hidden.shape[:2] != packed["input_ids"].shape:
        raise ValueError(f"hidden has shape {list(hidden.shape)}; expected {[*packed['input_ids'].shape, 'H']}")
    sequence, token = (packed["answer_ids"] >= 0).nonzero(as_tuple=True)
    rows = hidden[sequence, packed["predictors"][sequence, token]]
    words = packed["input_ids"][sequence, token]
    found = linear_log_probs(rows, weight, words, bias=bias, softcap=softcap, chunk=chunk, ignore_index=-1)
    return found.new_zeros(packed["answers"].shape[0]).index_add(0, packed["answer_ids"][sequence, token], found)


def head_memory(weight: Tensor, rows: int) -> int:
    """Returns the most bytes that a loss here takes beside the gradient of its rows, if all rows have a label."""
    size, words = weight.dtype.itemsize, weight.shape[0]
    of_liger = 2 * rows * weight.shape[1] * size if uses_liger(weight, weight) else 0
    wide = max(size, 4)
    of_word = size + wide * (1 if wide == size else 2)  # log_softmax makes a wide copy of narrow logits first
    logits = max(of_liger, min(ROWS, rows) * words * of_word)
    return logits + (weight.numel() * (4 + size) if weight.requires_grad else 0)


def _check_head(hidden: Tensor, head: _Head) -> None:
    weight, bias, softcap = head
    for name, tensor in (("hidden", hidden), ("weight", weight), ("bias", bias)):
        if not isinstance(tensor, Tensor):
            if name == "bias" and tensor is None:
                continue
            raise TypeError(f"{name} is {described(tensor)}; expected a torch tensor")
        if not tensor.is_floating_point() or (tensor.dtype != hidden.dtype and not is_autocast(hidden.device.type)):
            raise TypeError(f"{name} has dtype {tensor.dtype}; expected a floating one, the same for all, or autocast")
        if tensor.device != hidden.device:
            raise ValueError(f"{name} is on {tensor.device}; expected {hidden.device}, the device of hidden")
    if not hidden.ndim or weight.ndim != 2 or hidden.shape[-1] != weight.shape[1]:
        raise ValueError(
            f"hidden has shape {list(hidden.shape)} and weight {list(weight.shape)}; expected [..., H] and [V, H]"
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(f"bias has shape {list(bias.shape)}; expected [{weight.shape[0]}], a number for each word")
    if softcap is not None and not (isinstance(softcap, (int, float)) and softcap > 0):
        raise ValueError(f"softcap is {described(softcap)}; expected a number above 0, or None")


def _labelled(hidden: Tensor, weight: Tensor, labels: Tensor, ignored: int, chunk: int) -> tuple[Tensor, Tensor]:
    """Returns the rows that have a label [rows, H], and their labels [rows]."""
    integer("chunk", chunk, minimum=1)
    integer("ignore_index", ignored)
    if not isinstance(labels, Tensor):
        raise TypeError(f"labels is {described(labels)}; expected a torch tensor of torch.int64")
    if labels.shape != hidden.shape[:-1]:
        raise ValueError(
            f"labels has shape {list(labels.shape)}; expected {list(hidden.shape[:-1])}, one for each row of hidden"
        )
    if labels.dtype is not torch.int64:
        raise TypeError(f"labels has dtype {labels.dtype}; expected torch.int64")
    flat = labels.flatten()
    kept = (flat != ignored).nonzero()[:, 0]
    wanted = flat[kept]
    if wanted.numel():
        low, high = (int(each) for each in torch.stack(wanted.aminmax()).tolist())
        if low < 0 or high >= weight.shape[0]:
            raise ValueError(
                f"labels holds {low if low < 0 else high}; expected words from 0 to {weight.shape[0] - 1}, or {ignored}"
            )
    rows = hidden.flatten(0, -2)
    return (rows if kept.numel() == rows.shape[0] else rows[kept]), wanted


class _Gradients:
    """Gradients of rows, weight and bias; only those that are requested get memory."""

    def __init__(self, asked: tuple[bool, ...], rows: Tensor, head: _Head) -> None:
        wide = torch.promote_types(head.weight.dtype, torch.float32)
        self.rows = torch.empty_like(rows) if asked[0] else None
        self.weight = torch.zeros_like(head.weight, dtype=wide) if asked[1] else None
        self.bias = torch.zeros_like(head.bias, dtype=wide) if asked[2] and head.bias is not None else None
        self.head = head

    def __bool__(self) -> bool:
        return self.rows is not None or self.weight is not None or self.bias is not None

    def add(self, span: slice, hidden: Tensor, gradient: Tensor) -> None:
        """Adds the gradients from a chunk's rows, given the gradient of their logits [chunk, V]."""
        if self.rows is not None:
            self.rows[span] = gradient @ self.head.weight.to(gradient.dtype)
        if self.weight is not None:
            _add_product(self.weight, gradient.mT, hidden.to(gradient.dtype))
        if self.bias is not None:
            self.bias += gradient.sum(0, dtype=self.bias.dtype)

    def times(self, factor: Tensor) -> list[Tensor | None]:
        """Returns all gradients times a factor, in their tensors' dtypes; call it once, since it overwrites them."""
        found = (self.rows, None), (self.weight, self.head.weight), (self.bias, self.head.bias)
        return [
            None if each is None else each.mul_(factor).to(each.dtype if of is None else of.dtype) for each, of in found
        ]


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """Adds a b to total, where the device can without rounding the product to a narrower dtype on the way."""
    if a.is_cuda and a.dtype != total.dtype:
        torch.addmm(total, a, b, out_dtype=total.dtype, out=total)
    else:
        total += a @ b


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, softcap: float | None, chunk: int
    ) -> Tensor:
        head = _Head(weight, bias, softcap)
        gradients = _Gradients(ctx.needs_input_grad, rows, head)
        total = torch.zeros((), dtype=torch.promote_types(rows.dtype, torch.float32), device=rows.device)
        for span in chunks(rows.shape[0], chunk):
            hidden, words = rows[span], labels[span, None]
            logits, tanh = head.logits(hidden)
            log_probs = log_softmax(logits, -1, dtype=total.dtype)
            picked = log_probs.gather(1, words)
            total -= picked.sum()
            if gradients:
                gradient = torch.exp(log_probs, out=logits)
                gradient.scatter_(1, words, torch.expm1(picked).to(gradient.dtype))
                gradients.add(span, hidden, _below_cap(gradient, tanh))
                del gradient
            del logits, tanh, log_probs  # before the next chunk's
        ctx.gradients = gradients
        return total

    @staticmethod
    @once_differentiable(ONCE)
    def backward(ctx: Any, grad: Tensor) -> Any:
        if ctx.gradients is None:
            raise RuntimeError("the gradient of a linear_cross_entropy() was asked for twice; it is there once")
        found = ctx.gradients.times(grad)
        ctx.gradients = None
        return *found, None, None, None


class _LogProbs(torch.autograd.Function):
    """Log-probabilities of labels, and the entropies of their distributions or None."""

    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        labels: Tensor,
        softcap: float | None,
        temperature: float,
        entropies: bool,
        chunk: int,
    ) -> tuple[Tensor, Tensor | None]:
        wide = torch.promote_types(rows.dtype, torch.float32)
        found = torch.empty(rows.shape[0], dtype=wide, device=rows.device)
        entropy = torch.empty_like(found) if entropies else None
        for span in chunks(rows.shape[0], chunk):
            logits, _ = _Head(weight, bias, softcap).logits(rows[span])
            log_probs = _log_probs(logits, temperature, wide)
            found[span] = log_probs.gather(1, labels[span, None])[:, 0]
            if entropy is not None:
                entropy[span] = -_times_itself(log_probs).sum(-1)
            del logits, log_probs  # before the next chunk's
        ctx.save_for_backward(rows, weight, bias, labels, entropy)
        ctx.softcap, ctx.temperature, ctx.chunk = softcap, temperature, chunk
        return found, entropy

    @staticmethod
    @once_differentiable(
        "linear_log_probs is differentiable once; make all logits and use torch's log_softmax for more"
    )
    def backward(ctx: Any, grad: Tensor, grad_of_entropy: Tensor | None) -> Any:
        rows, weight, bias, labels, entropy = ctx.saved_tensors
        head = _Head(weight, bias, ctx.softcap)
        gradients = _Gradients(ctx.needs_input_grad, rows, head)
        for span in chunks(rows.shape[0], ctx.chunk):
            hidden, words, factor = rows[span], labels[span, None], grad[span, None] / ctx.temperature
            logits, tanh = head.logits(hidden)
            log_probs = _log_probs(logits, ctx.temperature, grad.dtype)
            picked = log_probs.gather(1, words)
            more = None
            if entropy is not None and grad_of_entropy is not None:  # p (-log p - entropy)
                more = _times_itself(log_probs).addcmul_(log_probs.exp(), entropy[span, None])
                more.mul_(grad_of_entropy[span, None] / -ctx.temperature)
            gradient = log_probs.exp_().mul_(-factor).scatter_(1, words, -factor * torch.expm1(picked))
            if more is not None:
                gradient += more
            gradients.add(span, hidden, _below_cap(logits.copy_(gradient), tanh))
            del logits, tanh, log_probs, gradient, more  # before the next chunk's
        return *gradients.times(torch.ones_like(grad[:1].sum())), None, None, None, None, None


def _log_probs(logits: Tensor, temperature: float, dtype: torch.dtype) -> Tensor:
    """Returns the logarithms of the probabilities of logits / temperature, in another dtype."""
    if temperature != 1:
        logits = logits.to(dtype, copy=True).div_(temperature)
    return log_softmax(logits, -1, dtype=dtype)


def _times_itself(log_probs: Tensor) -> Tensor:
    """Returns p log p, which is 0 where p is."""
    return log_probs.exp().mul_(log_probs.clamp(min=torch.finfo(log_probs.dtype).min))
