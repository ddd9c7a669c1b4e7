# SPDX-License-Identifier: Apache-2.0
"""What the masks of draft models and of block diffusion cost beside their attention, FlashMask beside FlexAttention.

DFlash: 512 blocks of 16 drafts behind a context of 32,768 tokens, alone and packed. Block diffusion: packed documents
of 16,384 tokens, hence 32,768 of noisy and clean ones, in both orders. Masks are new in every step, as in training, and
made on the GPU. Milliseconds, medians of contestants in turns; 32 query heads over 8 key heads of 128, bfloat16.
FlexAttention and its create_block_mask are compiled; "eager" is create_block_mask as it is without torch.compile.

python bench/drafts.py [--tokens 32768]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from comparison.clock import in_turns, on_the_gpu, on_the_host, one_way
from comparison.contestants import compiled_block_mask, compiled_flex
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask

import flashmask
from flashmask import masks

HEADS, KV_HEADS, DIM = 32, 8, 128
BLOCK, BLOCKS, DOCUMENTS = 16, 512, 12
SEED = 20261125
MaskMod = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Case:
    """A mask of `rows` by `columns`, as this library makes it and as a mask_mod.

    `same` says in which order of tokens the mask_mod's mask is this library's: None, the same one.
    """

    name: str
    rows: int
    columns: int
    ours: Callable[[], Any]
    mask_mod: MaskMod
    same: Callable[[], Tensor] | None = None


def ends_of_documents(tokens: int, device: str) -> Tensor:
    """Ends of documents whose lengths were drawn at random, int32 [documents + 1]."""
    draw = torch.Generator().manual_seed(SEED)
    inner = torch.randperm(tokens - 1, generator=draw)[: DOCUMENTS - 1].sort().values + 1
    return torch.cat([torch.tensor([0]), inner, torch.tensor([tokens])]).to(device, torch.int32)


def dflash(tokens: int, device: str, packed: bool) -> Case:
    draw = torch.Generator().manual_seed(SEED)
    anchors = torch.randperm(tokens, generator=draw)[:BLOCKS].sort().values.to(device)
    ends = ends_of_documents(tokens, device)
    ids = torch.searchsorted(ends[1:], torch.arange(tokens, device=device, dtype=torch.int32), right=True)
    blocks = anchors.shape[0]

    def sees(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        block = q // BLOCK
        context = (k < tokens) & (k < anchors[block])
        if packed:
            context = context & (ids[k.clamp(max=tokens - 1)] == ids[anchors[block]])
        return context | ((k >= tokens) & (block == (k - tokens) // BLOCK))

    def ours() -> flashmask.RowIndices:
        return masks.dflash(anchors, BLOCK, tokens, document_ids=ids if packed else None)

    name = "DFlash, packed context" if packed else "DFlash"
    return Case(name, blocks * BLOCK, tokens + blocks * BLOCK, ours, sees)


def block_diffusion(tokens: int, device: str, interleaved: bool) -> Case:
    half = tokens // 2
    ends = ends_of_documents(half, device)
    token = torch.arange(half, device=device, dtype=torch.int32)
    ids = torch.searchsorted(ends[1:], token, right=True)
    block = (token - ends[ids]) // BLOCK

    def sees(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        noisy_row, noisy_key = q < half, k < half
        row, key = q % half, k % half
        same, step = ids[row] == ids[key], block[row] - block[key]
        in_noise = noisy_row & noisy_key & (step == 0)
        in_clean = ~noisy_key & torch.where(noisy_row, step > 0, step >= 0)
        return same & (in_noise | in_clean)

    def ours() -> Any:
        return masks.packed_block_diffusion(ends, BLOCK, half, interleaved=interleaved)

    name = "packed block diffusion, " + ("interleaved" if interleaved else "[x_t | x_0]")
    order = (lambda: masks.interleaved_blocks(ends, BLOCK, half)) if interleaved else None
    return Case(name, 2 * half, 2 * half, ours, sees, order)


def cases(tokens: int, device: str) -> list[Case]:
    of_drafts = [dflash(tokens, device, packed) for packed in (False, True)]
    return of_drafts + [block_diffusion(tokens, device, interleaved) for interleaved in (False, True)]


def steps_of(case: Case) -> tuple[dict[str, dict[str, float]], float]:
    """Milliseconds of the mask, the attention and a step with both; and the largest difference of the outputs."""

    def leaf(tokens: int, heads: int) -> Tensor:
        return torch.randn(1, tokens, heads, DIM, device="cuda", dtype=torch.bfloat16).requires_grad_()

    leaves = [leaf(case.rows, HEADS), leaf(case.columns, KV_HEADS), leaf(case.columns, KV_HEADS)]
    grad = torch.randn_like(leaves[0])
    q, k, v = leaves
    turned = [each.detach().transpose(1, 2).contiguous().requires_grad_() for each in leaves]

    def flex_mask(make: Callable[..., Any]) -> Any:
        return make(case.mask_mod, None, None, case.rows, case.columns, device="cuda")

    def ours(mask: Any) -> Tensor:
        o: Tensor = flashmask.attention(q, k, v, mask)
        return o

    def flex(mask: Any) -> Tensor:
        o: Tensor = compiled_flex(*turned, block_mask=mask, enable_gqa=True)
        return o

    mask, block_mask = case.ours(), flex_mask(compiled_block_mask)
    far = difference(case, [each.detach() for each in leaves], mask, block_mask)
    makers = {
        "ours": case.ours,
        "flex": lambda: flex_mask(compiled_block_mask),
        "flex, eager": lambda: flex_mask(create_block_mask),
    }
    made = {name: on_the_gpu(make) or on_the_host(make) for name, make in makers.items()}
    kept = {
        "ours": one_way("both", lambda: ours(mask), leaves, grad),
        "flex": one_way("both", lambda: flex(block_mask), turned, grad.transpose(1, 2)),
    }
    anew = {
        "ours": one_way("both", lambda: ours(case.ours()), leaves, grad),
        "flex": one_way("both", lambda: flex(makers["flex"]()), turned, grad.transpose(1, 2)),
    }
    return {"mask": made, "attention": in_turns(kept, 3, 3), "both": in_turns(anew, 3, 3)}, far


def difference(case: Case, leaves: list[Tensor], mask: Any, block_mask: Any) -> float:
    """Largest difference between the two outputs, where both see the same."""
    q, k, v = leaves
    o = flashmask.attention(*((x[:, case.same()] for x in leaves) if case.same else leaves), mask)
    if case.same:
        o = o[:, case.same().argsort()]
    other = compiled_flex(*(x.transpose(1, 2) for x in (q, k, v)), block_mask=block_mask, enable_gqa=True)
    return float((o - other.transpose(1, 2)).abs().max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=32768, help="of the context, and of noisy and clean tokens")
    tokens = parser.parse_args().tokens
    if not torch.cuda.is_available():
        parser.error("no CUDA device is here; this measures GPUs alone")
    torch.manual_seed(0)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, flashmask {flashmask.__version__}")
    for case in cases(tokens, "cuda"):
        found, far = steps_of(case)
        print(f"{case.name}: {case.rows:,} x {case.columns:,}; outputs differ by at most {far:.4f}")
        for what, times in found.items():
            said = "  ".join(f"{name} {taken:.3f}" for name, taken in times.items())
            print(f"  {what:10} {said}  ({times['flex'] / times['ours']:.2f} times)", flush=True)


if __name__ == "__main__":
    main()
