# SPDX-License-Identifier: Apache-2.0
"""flashmask_attention(): the function of the FlashMask papers, argument for argument."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

from flashmask._abi.problem import make_problem
from flashmask._arguments import boolean, check_dense, described, integer, is_autocast, is_tensor
from flashmask._options import SharedArguments, options_of
from flashmask._rows import check_row_indices

if TYPE_CHECKING:
    from torch import Tensor
    from typing_extensions import Unpack

    class _ByName(SharedArguments, total=False):
        dropout: float
        causal: bool
        window_size: int | Sequence[int | None] | None
        fixed_seed_offset: Tensor | Sequence[int] | None
        rng_name: str
        training: bool
        name: str | None
        softmax_scale: float | None
        block_mask: Tensor | None
        deterministic: bool


@overload
def flashmask_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    startend_row_indices: Tensor | None = None,
    *,
    return_softmax_lse: Literal[False] = False,
    return_seed_offset: Literal[False] = False,
    **options: Unpack[_ByName],
) -> Tensor: ...
@overload
def flashmask_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    startend_row_indices: Tensor | None = None,
    *,
    return_softmax_lse: Literal[True],
    return_seed_offset: Literal[False] = False,
    **options: Unpack[_ByName],
) -> tuple[Tensor, Tensor]: ...
@overload
def flashmask_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    startend_row_indices: Tensor | None = None,
    *,
    return_softmax_lse: Literal[False] = False,
    return_seed_offset: Literal[True],
    **options: Unpack[_ByName],
) -> tuple[Tensor, Tensor]: ...
@overload
def flashmask_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    startend_row_indices: Tensor | None = None,
    *,
    return_softmax_lse: Literal[True],
    return_seed_offset: Literal[True],
    **options: Unpack[_ByName],
) -> tuple[Tensor, Tensor, Tensor]: ...
@overload
def flashmask_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    startend_row_indices: Tensor | None = None,
    *,
    return_softmax_lse: bool = False,
    return_seed_offset: bool = False,
    **options: Unpack[_ByName],
) -> Any: ...
def flashmask_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    startend_row_indices: Tensor | None = None,
    *,
    dropout: float = 0.0,
    causal: bool = False,
    window_size: int | Sequence[int | None] | None = None,
    return_softmax_lse: bool = False,
    return_seed_offset: bool = False,
    fixed_seed_offset: Tensor | Sequence[int] | None = None,
    rng_name: str = "",
    training: bool = True,
    name: str | None = None,
    softmax_scale: float | None = None,
    block_mask: Tensor | None = None,
    deterministic: bool = False,
    **options: Any,
) -> Any:
    """Computes attention under row indices, which say for each key which query rows do not see it.

    The format is that of Wang et al. 2024 (FlashMask), section 4.1; names, order, defaults and results are those of
    the function that users of the papers' kernels call. Tensors are torch tensors as flashmask.attention() takes them:
    finite, masked or not.

    Args:
        query: (batch, query length, query heads, head dim).
        key: (batch, key length, kv heads, head dim).
        value: (batch, key length, kv heads, value dim).
        startend_row_indices: int32 [batch or 1, mask heads, key length, n], mask heads 1, kv heads or query heads. With
            `causal`, n = 1: the first masked row LTS, or n = 2: masked rows [LTS, LTE); without, n = 2: [LTS, end) and
            [0, UTE), or n = 4: [LTS, LTE) and [UTS, UTE). None: all that `causal` allows.
        dropout: probability with which an attention probability is dropped, in [0, 1).
        causal: row i sees key j only when j <= i + key length - query length.
        window_size: how many keys before and after its own a row sees, or (before, after); None or -1: no limit on that
            side. Excludes `startend_row_indices`. With `causal` no keys after its own are seen.
        return_softmax_lse: also return lse (batch, query heads, query length), float32.
        return_seed_offset: also return the seed and offset of the dropout, int64 [2]; zeros where nothing is dropped.
        fixed_seed_offset: int64 [2] that repeats the dropout of an earlier call; None: drawn from torch's generator,
            which torch.manual_seed() sets.
        rng_name: accepted and ignored: PyTorch's generator has no name.
        training: False: no dropout.
        name: accepted and ignored.
        softmax_scale: factor on the scores; None: 1 / sqrt(head dim).
        block_mask: int32 [batch or 1, mask heads, ceil(query length / 128), ceil(key length / 128)], 1: the block of
        128 x 128 scores is kept, 0: it is left out. Used together with the row indices, or alone.
        sinks: logits that take probability and have no value, as flashmask.attention() takes them.
        deterministic: make gradients bitwise the same in every run, as for flashmask.attention().
        score: a change of scores, or its parts by keyword, as for flashmask.attention().
        invariant: give every document the bits that it has alone, as flashmask.attention() does. With dropout,
            documents begin at multiples of 8; not with `block_mask`.
        backend: "flashmask" or "cudnn", as for flashmask.attention(); None: automatic.

    Returns:
        The output (batch, query length, query heads, value dim), or a tuple of the output and those of lse and
        seed_offset that were asked for, in this order.

    Raises:
        ValueError, TypeError: an argument is not as described, or the arguments do not fit each other.
    """
    boolean("causal", causal)
    bound = {"deterministic": deterministic, "scale": softmax_scale, "dropout": dropout if training else 0.0}
    given = options_of(flashmask_attention, options, SharedArguments, {"scale": "softmax_scale"}, **bound)
    check_tensors(query, key, value)
    _check_masks(startend_row_indices, causal, window_size, block_mask)

    from flashmask._torch.attention import call_of
    from flashmask._torch.dropout import seed_offset_of
    from flashmask._torch.operators import forward

    seed_offset = seed_offset_of(fixed_seed_offset, given.dropout, query.device)
    rows = startend_row_indices
    if window_size is not None:
        rows = window_rows(window_size, query, key, causal)
    seeds = seed_offset if given.dropout > 0 else None
    call = call_of(given, rows, block_mask=block_mask, causal=causal, seed_offset=seeds)
    o, lse = forward(query, key, value, call)
    results = [o, *([lse] if return_softmax_lse else []), *([seed_offset] if return_seed_offset else [])]
    return tuple(results) if len(results) > 1 else o


def check_tensors(query: Any, key: Any, value: Any, names: tuple[str, str, str] = ("query", "key", "value")) -> None:
    """Refuses tensors that attention cannot take; messages use the caller's names for them."""
    for name, tensor in zip(names, (query, key, value), strict=True):
        if not is_tensor(tensor):
            raise TypeError(
                f"{name} is {described(tensor)}; expected a torch tensor (flashmask.attention takes NumPy arrays too)"
            )
        check_dense(name, tensor)
    import torch

    if torch.compiler.is_compiling():  # checks here would guard on sizes; the operator checks them
        return
    if not query.dtype == key.dtype == value.dtype and not is_autocast(query.device.type):
        raise TypeError(
            f"{names[0]}, {names[1]} and {names[2]} have dtypes {query.dtype}, {key.dtype} and {value.dtype}; expected "
            "one dtype"
        )
    make_problem((query.shape, key.shape, value.shape), "float32", None, 0.0, names)


def _check_masks(rows: Any, causal: bool, window_size: object, block_mask: Any) -> None:
    if rows is not None:
        check_row_indices("startend_row_indices", rows, causal)
        if window_size is not None:
            raise ValueError("startend_row_indices and window_size are both given; pass one of them")
    if block_mask is not None:
        _check_block_mask(block_mask)


def _check_block_mask(block_mask: Any) -> None:
    if not is_tensor(block_mask):
        raise TypeError(f"block_mask is {described(block_mask)}; expected an int32 tensor")
    if str(block_mask.dtype) != "torch.int32":
        raise TypeError(f"block_mask holds {block_mask.dtype} values; expected int32")
    if block_mask.ndim != 4:
        raise ValueError(
            f"block_mask has shape {list(block_mask.shape)}; expected [batch or 1, heads, ceil(query length / 128), "
            "ceil(key length / 128)]"
        )


def window_rows(window_size: object, query: Tensor, key: Tensor, causal: bool) -> Tensor | None:
    """Returns row indices [1, 1, key length, 1 or 2] of a bottom-right aligned window; None if it has no limit."""
    import torch

    left, right = window_sides(window_size)
    if left is None and (causal or right is None):
        return None
    rows, columns = query.shape[1], key.shape[1]
    diagonal = torch.arange(columns, device=query.device) + (rows - columns)  # the row that is aligned with each key
    unlimited = torch.zeros_like(diagonal)
    starts = unlimited + rows if left is None else (diagonal + left + 1).clamp(0, rows)
    if causal:
        vectors = starts[:, None]
    else:
        ends = unlimited if right is None else (diagonal - right).clamp(0, rows)
        vectors = torch.stack([starts, ends], dim=-1)
    return vectors.to(torch.int32)[None, None]


def window_sides(window_size: object) -> tuple[int | None, int | None]:
    """Returns how many keys before and after its own a row sees; None: no limit."""
    if isinstance(window_size, (tuple, list)):
        if len(window_size) != 2:
            raise ValueError(f"window_size has {len(window_size)} values; expected one, or (before, after)")
        left, right = window_size
    else:
        left = right = window_size
    return _side("window_size[0]", left), _side("window_size[1]", right)


def _side(name: str, value: object) -> int | None:
    if value is None:
        return None
    number = integer(name, value, minimum=-1, maximum=2**31 - 1)
    return None if number < 0 else number
