# SPDX-License-Identifier: Apache-2.0
"""Contestants that compute attention: this library and its peers, each with how it prepares a mask and how it runs."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

import flashmask
from comparison.masks import MaskCase

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]
Prepare = Callable[[MaskCase, Tensor, Tensor], Attention]

DENSE_BYTES = 4e9
"""A dense mask that is larger does not fit beside what SDPA makes of it."""


class Absent(Exception):
    """Why a contestant does not take part."""


@dataclass(frozen=True)
class Contestant:
    """`prepare` makes the mask ready for tensors like q and k, and returns the attention under it."""

    label: str
    prepare: Prepare
    heads_first: bool = True


def problem_of(q: Tensor, k: Tensor) -> Any:
    from flashmask._abi.problem import make_problem

    return make_problem((q.shape, k.shape, k.shape), "bfloat16", None, 0.0)._replace(device=str(q.device))


def of_intervals(case: MaskCase, q: Tensor, k: Tensor, deterministic: bool = False) -> Attention:
    """Attends from row indices on the GPU. The plan made here shows what a plan costs; the first call makes another."""
    from flashmask._abi.header import Options
    from flashmask._torch.plans.device_plan import plan_of_rows

    rows = case.rows
    if rows is None:
        return of_mask(case, q, k, deterministic)
    own = flashmask.RowIndices(rows.startend_row_indices.clone(), rows.causal, rows=rows.rows)
    plan = plan_of_rows(
        own.startend_row_indices, own.causal, problem_of(q, k), Options(deterministic=int(deterministic))
    )

    def run(q: Tensor, k: Tensor, v: Tensor, kept: object = plan) -> Tensor:
        o: Tensor = flashmask.attention(q, k, v, own, deterministic=deterministic)
        return o

    return run


def of_mask(case: MaskCase, q: Tensor, k: Tensor, deterministic: bool = False) -> Attention:
    """Attends from the mask on the host."""
    plan = flashmask.plan(case.mask, q, k, deterministic=deterministic)

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        o: Tensor = flashmask.attention(q, k, v, plan=plan)
        return o

    return run


def of_bits(case: MaskCase, q: Tensor, k: Tensor) -> Attention:
    """Attends from booleans on the GPU. As in of_intervals(), the first call makes another plan."""
    from flashmask._abi.header import Options
    from flashmask._torch.plans.device_plan import plan_of_booleans
    from flashmask.operators import forward

    visible = case.visible
    plan = plan_of_booleans(visible, problem_of(q, k), Options())

    def run(q: Tensor, k: Tensor, v: Tensor, kept: object = plan) -> Tensor:
        return forward(q, k, v, visible, None, False, 0.0, 0.0, None)[0]

    return run


compiled_flex = torch.compile(flex_attention, dynamic=False)
# A separate sorting kernel would take Triton a minute to compile.
compiled_block_mask = torch.compile(create_block_mask, dynamic=False, options={"triton.persistent_reductions": False})


def flex(case: MaskCase, q: Tensor, k: Tensor, backend: str = "") -> Attention:
    block_mask = None
    if case.mask_mod is not None:
        shape = case.mask.shape
        batch, heads = (n if n > 1 else None for n in (shape.batch, shape.heads))
        block_mask = compiled_block_mask(case.mask_mod, batch, heads, shape.rows, shape.columns, device=case.device)
    grouped = q.shape[1] != k.shape[1]
    options = {"kernel_options": {"BACKEND": backend}} if backend else {}
    return lambda q, k, v: compiled_flex(q, k, v, block_mask=block_mask, enable_gqa=grouped, **options)


def flex_by_flash4(case: MaskCase, q: Tensor, k: Tensor) -> Attention:
    imported("flash_attn.cute", "pip install flash-attn-4")
    return flex(case, q, k, backend="FLASH")


def sdpa(backend: SDPBackend) -> Prepare:
    def prepare(case: MaskCase, q: Tensor, k: Tensor) -> Attention:
        if not case.plain:
            raise Absent("has no masks but full and causal")
        is_causal, grouped = case.plain == "causal", q.shape[1] != k.shape[1]

        def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            with sdpa_kernel(backend):
                return scaled_dot_product_attention(q, k, v, is_causal=is_causal, enable_gqa=grouped)

        return run

    return prepare


def dense(case: MaskCase, q: Tensor, k: Tensor) -> Attention:
    shape = case.mask.shape
    if shape.batch * shape.heads * shape.rows * shape.columns > DENSE_BYTES:
        raise Absent("the dense mask does not fit")
    visible, grouped = case.visible, q.shape[1] != k.shape[1]
    return lambda q, k, v: scaled_dot_product_attention(q, k, v, attn_mask=visible, enable_gqa=grouped)


def imported(module: str, install: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise Absent(f"not installed: {error}; {install}") from error


def of_documents(case: MaskCase, q: Tensor, attend: Callable[[list[Tensor], Tensor, int], Tensor]) -> Attention:
    """Attends with `attend`, which takes packed documents: flat q, k and v, where documents end, and the longest
    length."""
    if not case.documents:
        raise Absent("has no masks but full, causal and documents")
    batch, rows = q.shape[:2]
    lengths = torch.tensor(list(case.documents) * batch)
    ends = torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).to(q.device, torch.int32)
    longest = int(lengths.max())
    return lambda q, k, v: attend([x.flatten(0, 1) for x in (q, k, v)], ends, longest).unflatten(0, (batch, rows))


def varlen(case: MaskCase, q: Tensor, k: Tensor) -> Attention:
    """FlashAttention-2 as PyTorch ships it, through its operator: the public function's arguments change with
    versions."""

    def attend(flat: list[Tensor], ends: Tensor, longest: int) -> Tensor:
        return _output(
            torch.ops.aten._flash_attention_forward(*flat, ends, ends, longest, longest, 0.0, case.causal, False)
        )

    return of_documents(case, q, attend)


def flash3(case: MaskCase, q: Tensor, k: Tensor) -> Attention:
    install = "it is built from the folder hopper of FlashAttention's sources"
    return by_flash(imported("flash_attn_interface", install), case, q)


def flash4(case: MaskCase, q: Tensor, k: Tensor) -> Attention:
    return by_flash(imported("flash_attn.cute", "pip install flash-attn-4"), case, q)


def by_flash(package: Any, case: MaskCase, q: Tensor) -> Attention:
    """Runs FlashAttention-3 or 4, which name their arguments alike."""
    if case.plain:
        return lambda q, k, v: _output(package.flash_attn_func(q, k, v, causal=case.plain == "causal"))

    def attend(flat: list[Tensor], ends: Tensor, longest: int) -> Tensor:
        where = {"cu_seqlens_q": ends, "cu_seqlens_k": ends, "max_seqlen_q": longest, "max_seqlen_k": longest}
        return _output(package.flash_attn_varlen_func(*flat, causal=case.causal, **where))

    return of_documents(case, q, attend)


def flash3_of_xformers(case: MaskCase, q: Tensor, k: Tensor) -> Attention:
    """xFormers carries FlashAttention-3 in its wheels for Hopper."""
    fmha = imported("xformers.ops.fmha", "pip install xformers, the version that goes with this torch")
    flash3 = imported("xformers.ops.fmha.flash3", "this xFormers is too old")
    if q.shape[2] != k.shape[2]:
        raise Absent("takes as many key heads as query heads")
    by = flash3.FwOp, flash3.BwOp
    if case.plain:
        bias = fmha.attn_bias.LowerTriangularMask() if case.plain == "causal" else None
        return lambda q, k, v: _output(fmha.memory_efficient_attention(q, k, v, bias, op=by))
    kind = fmha.attn_bias.BlockDiagonalCausalMask if case.causal else fmha.attn_bias.BlockDiagonalMask
    documents = kind.from_seqlens(list(case.documents) * q.shape[0]) if case.documents else None

    def attend(flat: list[Tensor], ends: Tensor, longest: int) -> Tensor:
        return _output(fmha.memory_efficient_attention(*(x[None] for x in flat), documents, op=by)[0])

    return of_documents(case, q, attend)


def cudnn_flex(case: MaskCase, q: Tensor, k: Tensor) -> Attention:
    """NVIDIA's FlexAttention over ranges of keys per row, which are made beforehand, as row indices are for ours."""
    package = imported("cudnn.flex_attention", "pip install 'nvidia-cudnn-frontend[cutedsl]>=1.32'")
    if case.rows is None or case.mask.shape.batch * case.mask.shape.heads > 1:
        raise Absent("has no masks but a few ranges of keys a row, the same for all heads and sequences")
    plan = package.create_mask_plan(case.row_ends.repeat(1, 1, q.shape[0]), q, k, k)
    return lambda q, k, v: _output(package.flex_attn_func(q, k, v, mask_plan=plan))


def flashmask3(case: MaskCase, q: Tensor, k: Tensor) -> Attention:
    package = imported("flash_mask", "it is built from PaddlePaddle's flash-attention")
    rows = case.rows
    if rows is None:
        raise Absent("has no masks but intervals")
    return lambda q, k, v: _output(
        package.flashmask_attention(q, k, v, startend_row_indices=rows.startend_row_indices, causal=rows.causal)
    )


def _output(given: Any) -> Tensor:
    """The first of a function's results, if it returns several."""
    o: Tensor = given[0] if isinstance(given, tuple) else given
    return o


CONTESTANTS = {
    "ours": Contestant("FlashMask", of_intervals, heads_first=False),
    "repeatable": Contestant("FlashMask, deterministic", partial(of_intervals, deterministic=True), heads_first=False),
    "bits": Contestant("FlashMask, as bits", of_bits, heads_first=False),
    "flex": Contestant("FlexAttention", flex),
    "cudnn": Contestant("SDPA, cuDNN", sdpa(SDPBackend.CUDNN_ATTENTION)),
    "flash2": Contestant("SDPA, FlashAttention", sdpa(SDPBackend.FLASH_ATTENTION)),
    "efficient": Contestant("SDPA, memory-efficient", sdpa(SDPBackend.EFFICIENT_ATTENTION)),
    "varlen": Contestant("FlashAttention-2, varlen", varlen, heads_first=False),
    "dense": Contestant("SDPA, dense mask", dense),
    "flash3": Contestant("FlashAttention-3", flash3, heads_first=False),
    "xformers3": Contestant("FlashAttention-3 of xFormers", flash3_of_xformers, heads_first=False),
    "flash4": Contestant("FlashAttention-4", flash4, heads_first=False),
    "flex4": Contestant("FlexAttention, FLASH", flex_by_flash4),
    "cudnnflex": Contestant("cudnn.flex_attention", cudnn_flex, heads_first=False),
    "flashmask3": Contestant("FlashMask V3", flashmask3, heads_first=False),
}
