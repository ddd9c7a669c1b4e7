# SPDX-License-Identifier: Apache-2.0
"""Holds every kernel that runs here against attention by its formula, and the promises to the bit. Needs torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

import flashmask
from flashmask import Mask, masks
from flashmask._abi.library import call
from flashmask._info import kernels

TOKENS = 257
"""A prime number: the last tile is never whole."""
_DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
_HEADS = ((4, 2, 64, 64), (3, 1, 80, 48), (2, 2, 128, 128), (1, 1, 200, 256))
"""Query heads, kv heads, head dim and value dim; masks take them in turn."""


@dataclass
class Verdict:
    """The result of one kernel over all cases that it serves."""

    kernel: str
    cases: int = 0
    worst: float = 0.0
    """Largest error over its bound."""
    where: str = ""

    @property
    def passes(self) -> bool:
        return self.worst <= 1


class Promise(NamedTuple):
    """Something that the documentation promises to the bit, and whether it held."""

    promise: str
    device: str
    dtype: str
    holds: bool


def corpus() -> dict[str, Mask]:
    """Masks of TOKENS tokens: most families, intervals and bits."""
    n = TOKENS
    return {
        "full": masks.full(n, n),
        "causal": masks.causal(n),
        "sliding_window": masks.sliding_window(n, 40),
        "causal_document": masks.causal_document([130, 0, 64, 50], n),
        "document": masks.document([100, 100, 57]),
        "shared_question": masks.shared_question([(60, [40, 33]), (20, [50, 54])], n),
        "prefix_lm_causal": masks.prefix_lm_causal(n, 70),
        "global_sliding_window": masks.global_sliding_window(n, 4, 30, 30),
        "tree": masks.tree([-1, 0, 0, 1], [70, 70, 70, 47], n),
        "dilated_window": masks.dilated_window(n, n, 40, 0, 3),
        "big_bird": masks.big_bird(n, block=16, window_blocks=3, global_blocks=1, random_blocks=1, seed=3),
        "two masks": masks.stack_heads([masks.causal(n), masks.document([200, 57])]),
    }


def check_kernels(device: str, note: Callable[[str], None]) -> list[Verdict]:
    """Runs every kernel of "cpu" or "cuda" on the corpus, calling note(name) before each mask."""
    table = [each for each in kernels() if each["runs"] and each["device"] == device]
    verdicts = {each["name"]: Verdict(each["name"]) for each in table}
    for at, (name, mask) in enumerate(corpus().items()):
        note(name)
        for dtype in dict.fromkeys(each["dtype"] for each in table):
            case = _Case(name, mask, *_HEADS[at % len(_HEADS)], dtype=_DTYPES[dtype], device=device)
            for each in table:
                if each["dtype"] == dtype:
                    case.check(each, verdicts[each["name"]])
    return list(verdicts.values())


def check_cudnn(note: Callable[[str], None]) -> list[Verdict]:
    """Runs NVIDIA's kernels behind backend="cudnn" on the corpus; an empty list where they are not here."""
    from flashmask._torch.plans.cudnn_plan import why_no_gpu

    if why_no_gpu(torch.cuda.current_device()):
        return []
    verdicts = [Verdict(f"cudnn.{direction}.bf16") for direction in ("forward", "backward")]
    for at, (name, mask) in enumerate(corpus().items()):
        note(f"cudnn: {name}")
        heads = _HEADS[2 * (at % 2)]  # each head dim is compiled when it is first called
        case = _Case(name, mask, *heads, dtype=torch.bfloat16, device="cuda")
        for verdict in verdicts:
            case.check({"name": "cudnn", "direction": verdict.kernel.split(".")[1]}, verdict)
    return verdicts


class _Case:
    """One mask, one set of heads, one dtype: tensors, the right results, and those of the formula in the dtype."""

    def __init__(
        self, name: str, mask: Mask, heads: int, kv_heads: int, dim: int, value_dim: int, *, dtype: Any, device: str
    ) -> None:
        if mask.shape.heads > 1:
            heads = kv_heads = mask.shape.heads
        draw = torch.Generator().manual_seed(1)
        shapes = ((heads, dim), (kv_heads, dim), (kv_heads, value_dim), (heads, value_dim))
        *self.inputs, self.grad = (torch.randn(1, TOKENS, *each, generator=draw).to(dtype) for each in shapes)
        self.name = f"{name}, d {dim}/{value_dim}, heads {heads}/{kv_heads}"
        self.mask, self.device, self.dtype = mask, device, dtype
        visible = torch.from_numpy(mask.to_dense()).bool()
        self.exact = self._by_formula(visible, torch.float64)
        self.naive = self._by_formula(visible, dtype)

    def _by_formula(self, visible: Tensor, dtype: Any) -> dict[str, Tensor]:
        return _results(lambda q, k, v: softmax_attention(q, k, v, visible), self.inputs, self.grad, dtype, "cpu")

    def check(self, kernel: dict[str, Any], verdict: Verdict) -> None:
        """Adds the kernel's errors to its verdict, unless it does not serve the case."""
        q, k, v = (each.to(self.device) for each in self.inputs)
        options: dict[str, Any] = {"mask": self.mask, "backend": "cudnn"}
        if kernel["name"] != "cudnn":
            try:
                options = {"plan": flashmask.plan(self.mask, q, k, v, kernel=kernel["name"], form=kernel["predicate"])}
            except NotImplementedError:
                return
        try:  # a GPU's plan may have no kernel for one direction, which is only said when that runs
            found = _results(lambda *qkv: _attend(qkv, options), self.inputs, self.grad, self.dtype, self.device)
        except NotImplementedError:
            return
        names = ("o", "lse") if kernel["direction"] == "forward" else ("dq", "dk", "dv")
        verdict.cases += 1
        for name in names:
            ratio = self._error_over_bound(name, found[name])
            if ratio > verdict.worst or not verdict.where:
                verdict.worst, verdict.where = max(ratio, verdict.worst), f"{name} of {self.name}"

    def _error_over_bound(self, name: str, found: Tensor) -> float:
        """The bound of docs/masks.md: twice the error of the formula in the dtype, and twice its rounding."""
        exact, naive = self.exact[name], self.naive[name]
        hidden = torch.isinf(exact)
        if not torch.equal(torch.isinf(found), hidden) or bool(torch.isnan(found).any()):
            return float("inf")
        exact, naive, found = (each.masked_fill(hidden, 0) for each in (exact, naive, found))
        largest = max(1.0, float(exact.abs().max()))
        error = float((found - exact).abs().max())
        if name == "lse":
            return error / ((1e-5 if self.dtype is torch.float32 else 1e-3) * largest)
        rounding = float(((exact.to(self.dtype) + 0.3 - 0.3).double() - exact).abs().max())
        return error / (2 * float((naive - exact).abs().max()) + 2 * rounding + 1e-5 * largest)


def softmax_attention(q: Tensor, k: Tensor, v: Tensor, visible: Tensor) -> tuple[Tensor, Tensor]:
    """o and lse of attention by its formula; visible [batch, mask heads, rows, columns]."""
    heads = q.shape[2]
    k, v = (each.repeat_interleave(heads // each.shape[2], dim=2) for each in (k, v))
    scores = torch.einsum("bihd,bjhd->bhij", q, k) * q.shape[3] ** -0.5
    scores = scores.masked_fill(~visible.repeat_interleave(heads // visible.shape[1], dim=1), -torch.inf)
    empty = torch.isneginf(scores).all(-1, keepdim=True)
    lse = torch.logsumexp(scores.masked_fill(empty, 0), -1)
    o = torch.einsum("bhij,bjhd->bihd", torch.exp(scores - lse[..., None]), v)
    return o, lse.masked_fill(empty[..., 0], -torch.inf)


def _attend(qkv: Any, options: dict[str, Any]) -> tuple[Tensor, Tensor]:
    o, lse = flashmask.attention(*qkv, return_lse=True, **options)
    return o, lse


def _results(
    attend: Callable[..., tuple[Tensor, Tensor]], inputs: list[Tensor], grad: Tensor, dtype: Any, device: str
) -> dict[str, Tensor]:
    """Returns o, lse and the gradients of q, k and v in float64 on the CPU."""
    leaves = [each.to(device, dtype).requires_grad_() for each in inputs]
    o, lse = attend(*leaves)
    gradients = torch.autograd.grad(o, leaves, grad.to(device, dtype))
    values = (o.detach(), lse.detach(), *gradients)
    return {name: value.double().cpu() for name, value in zip(("o", "lse", "dq", "dk", "dv"), values, strict=True)}


_FIRST, _SECOND = 300, 212


def check_promises(device: str) -> Iterator[Promise]:
    """Runs two packed documents, forward and backward, once for each promise and dtype that the device computes."""
    for dtype in dict.fromkeys(each["dtype"] for each in kernels() if each["runs"] and each["device"] == device):
        draw = torch.Generator().manual_seed(1)
        shapes = (4, 2, 2, 4)
        given = [torch.randn(1, _FIRST + _SECOND, heads, 64, generator=draw).to(_DTYPES[dtype]) for heads in shapes]
        mask = masks.causal_document([_FIRST, _SECOND])
        usual = _run(given, mask, device, deterministic=True)
        yield Promise(
            "the same bits in a second run", device, dtype, _same(_run(given, mask, device, deterministic=True), usual)
        )
        everywhere = _run(given, mask, device, deterministic=True, visit="all")
        yield Promise("the same bits where every tile is visited", device, dtype, _same(everywhere, usual))
        if device == "cpu":
            call("set_thread_count", 1)
            by_one = _run(given, mask, device, deterministic=True)
            call("set_thread_count", 0)
            yield Promise("the same bits with one thread", device, dtype, _same(by_one, usual))
            packed = _run(given, mask, device, invariant=True)
            alone = _run([each[:, _FIRST:] for each in given], masks.causal(_SECOND), device, invariant=True)
            same = _same([each[:, _FIRST:] for each in packed], alone)
            yield Promise("a document has the bits that it has alone, if invariant", device, dtype, same)


def _run(given: list[Tensor], mask: Mask, device: str, **options: Any) -> list[Tensor]:
    """Returns o and the gradients of q, k and v."""
    *leaves, grad = (each.to(device) for each in given)
    leaves = [each.requires_grad_() for each in leaves]
    plan = flashmask.plan(mask, *leaves, **options)
    o = flashmask.attention(*leaves, plan=plan)
    return [o.detach(), *torch.autograd.grad(o, leaves, grad)]


def _same(some: list[Tensor], others: list[Tensor]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(some, others, strict=True))
