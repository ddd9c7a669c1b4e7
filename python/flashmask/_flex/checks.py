# SPDX-License-Identifier: Apache-2.0
"""What flex_attention() refuses before it computes; where FlexAttention refuses the same, in its words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from flashmask._arguments import check_dense, described, is_tensor

if TYPE_CHECKING:
    from torch import Tensor

# Fields of FlexKernelOptions in torch 2.6 to 2.15, and the other options of its kernels.
_KERNEL_OPTIONS = """
    num_warps num_stages BLOCK_M BLOCK_N BLOCK_M1 BLOCK_N1 BLOCK_M2 BLOCK_N2 PRESCALE_QK ROWS_GUARANTEED_SAFE
    BLOCKS_ARE_CONTIGUOUS WRITE_DQ FORCE_USE_FLEX_ATTENTION USE_TMA kpack matrix_instr_nonkdim waves_per_eu BACKEND
    OUTPUT_LOGSUMEXP OUTPUT_MAX SPARSE_Q_BLOCK_SIZE SPARSE_KV_BLOCK_SIZE IS_DIVISIBLE
"""
KERNEL_OPTIONS = frozenset(_KERNEL_OPTIONS.split())
_ANY_SIZE = 1 << 30  # sides of the one block of a BlockMask that FlexAttention makes where it is given none


def check_call(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    block_mask: Any,
    enable_gqa: bool,
    return_lse: bool,
    kernel_options: Mapping[str, Any] | None,
    return_aux: Any,
) -> None:
    """Refuses a call of flex_attention() by what is known without values."""
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if not is_tensor(tensor):
            raise TypeError(f"{name} is {described(tensor)}; expected a torch tensor")
        check_dense(name, tensor)
        if tensor.dim() != 4:
            raise ValueError(f"{name} has shape {list(tensor.shape)}; expected (batch, heads, tokens, head dim)")
        if "float8" in str(tensor.dtype):
            raise TypeError(
                f"{name} has dtype {tensor.dtype}; expected torch.float32, bfloat16, float16 or float64, that of query"
            )
    _check_alike(query, key, value)
    _check_heads(query, key, enable_gqa)
    _check_batch(query, key, block_mask)
    if return_aux is not None and return_lse:
        raise ValueError(
            "Cannot specify both return_lse and return_aux. "
            "return_lse is deprecated, please use return_aux=AuxRequest(lse=True) instead."
        )
    for name in kernel_options or ():
        if name.removeprefix("fwd_").removeprefix("bwd_") not in KERNEL_OPTIONS:
            raise ValueError(f"kernel_options has {name!r}, which FlexAttention does not know")
    if hasattr(block_mask, "mask_mod"):
        _check_block_mask(query, key, block_mask)


def _check_alike(query: Tensor, key: Tensor, value: Tensor) -> None:
    if not query.dtype == key.dtype == value.dtype:
        raise ValueError(
            f"Expected query, key, and value to have the same dtype, but got query.dtype: {query.dtype}, "
            f"key.dtype: {key.dtype}, and value.dtype: {value.dtype} instead."
        )
    if not query.device == key.device == value.device:
        raise ValueError(
            f"Expected query, key, and value to have the same device type, but got query.device: {query.device}, "
            f"key.device: {key.device}, and value.device: {value.device} instead."
        )


def _check_heads(query: Tensor, key: Tensor, enable_gqa: bool) -> None:
    of_query, of_key = query.shape[1], key.shape[1]
    if not enable_gqa and of_query != of_key:
        raise ValueError(
            f"Expect query and key/value to have the same number of heads but got Hq={of_query} and Hkv={of_key}. "
            "Try setting enable_gqa=True for GQA."
        )
    if enable_gqa and of_query % of_key:
        raise ValueError(
            f"Expect number of query heads to be a multiple of kv heads for GQA but got Hq={of_query} and Hkv={of_key}."
        )


def _check_batch(query: Tensor, key: Tensor, block_mask: Any) -> None:
    of_query, of_key = query.shape[0], key.shape[0]
    if of_query == of_key:
        return
    if block_mask is None:
        raise ValueError(
            "Expect query and key/value to have the same batch size, or non-none block_mask, "
            f"but got block_mask=None, Bq={of_query}, and Bkv={of_key}."
        )
    of_mask = block_mask.kv_num_blocks.shape[0] if hasattr(block_mask, "mask_mod") else of_query
    if of_key != 1 or of_mask != of_query:
        raise ValueError(
            "Expect query and key/value to have the same batch size, or block_mask and query to have the same batch "
            f"size, but got Bq={of_query}, Bkv={of_key}, B_block_mask={of_mask}."
        )


def is_of_any_size(block_mask: Any) -> bool:
    """Whether a BlockMask has one block for any number of tokens, in which mask_mod decides."""
    return tuple(block_mask.BLOCK_SIZE) == (_ANY_SIZE, _ANY_SIZE)


def _check_block_mask(query: Tensor, key: Tensor, block_mask: Any) -> None:
    rows, columns = query.shape[2], key.shape[2]
    if getattr(block_mask.mask_mod, "__name__", "") == "_sliced_mask_mod_error":
        raise RuntimeError("Cannot use mask_mod from a sliced BlockMask")
    if not is_of_any_size(block_mask) and tuple(block_mask.shape[-2:]) != (rows, columns):
        smaller = rows > block_mask.shape[-2] or columns > block_mask.shape[-1]
        raise ValueError(
            f"block_mask was created for block_mask.shape={tuple(block_mask.shape)} but got q_len={rows} and "
            f"kv_len={columns}. "
            + (
                "As the block mask was created for a smaller length than you're using it for, you likely need to "
                "create a new block mask."
                if smaller
                else "As the block mask was created for a larger length, create a new block mask with the correct "
                "length, or crop it by block_mask._adjust(q_len, kv_len), which does not work for all mask_mods"
            )
        )
    if block_mask.kv_num_blocks.device != query.device:
        raise RuntimeError(
            f"Expect q/k/v and block_mask to be on the same device but got {query.device} and "
            f"{block_mask.kv_num_blocks.device}."
        )
