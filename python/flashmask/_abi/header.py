# SPDX-License-Identifier: Apache-2.0
"""The header in front of a packed mask: the mask's id, and the options of its plan."""

from __future__ import annotations

import struct
from typing import NamedTuple

from flashmask._abi import structs as s

HEADER_BYTES = 128
_MAGIC = b"flashmask mask 1"
_LAYOUT = struct.Struct("<16s16shhhhihh72sii")
assert _LAYOUT.size == HEADER_BYTES
_DETERMINISTIC = slice(44, 46)


class Options(NamedTuple):
    """The fields of flashmask_plan_options without its executor."""

    visit: int = 0
    form: int = 0
    reorder: int = 0
    deterministic: int = 0
    kernel: str = ""
    forward_tiles: int = 0
    backward_tiles: int = 0
    skip_query_gradient: int = 0
    skip_key_gradients: int = 0
    invariant: int = 0
    compile_when_called: int = 0
    """Like the next one not in headers, as calls say it."""
    compile_backward_later: int = 0

    def struct(self) -> s.PlanOptions:
        """Returns the options as the struct of the C ABI."""
        options = s.PlanOptions(
            visit=self.visit,
            form=self.form,
            reorder=self.reorder,
            deterministic=self.deterministic,
            forward_tiles=self.forward_tiles,
            backward_tiles=self.backward_tiles,
            skip_query_gradient=self.skip_query_gradient,
            skip_key_gradients=self.skip_key_gradients,
            invariant=self.invariant,
            compile_when_called=self.compile_when_called,
            compile_backward_later=self.compile_backward_later,
        )
        options.kernel = self.kernel.encode()
        return options


def header(mask_id: bytes, options: Options) -> bytes:
    """Packs the header. Equal values of `mask_id` [16] mean the same mask, in any process."""
    kernel = options.kernel.encode()
    if len(kernel) > 72:
        raise ValueError(f"kernel is {options.kernel!r}; expected a kernel name of at most 72 bytes")
    skipped = options.skip_query_gradient, options.skip_key_gradients
    chosen = options.visit, options.form, *skipped, options.reorder, options.deterministic, options.invariant
    return _LAYOUT.pack(_MAGIC, mask_id, *chosen, kernel, options.forward_tiles, options.backward_tiles)


def says_deterministic(packed: bytes) -> bool:
    """Whether the header asks for kernels that give the same bits on every run."""
    return any(packed[_DETERMINISTIC])


def read_header(packed: bytes) -> tuple[bytes, Options]:
    """Returns the id and options in the first HEADER_BYTES bytes of a packed mask."""
    if len(packed) < HEADER_BYTES or packed[: len(_MAGIC)] != _MAGIC:
        raise ValueError("mask is a uint8 tensor that does not hold a packed mask; pass Mask.tensor or Plan.tensor")
    _, mask_id, visit, form, *skipped, reorder, deterministic, invariant, kernel, forward, backward = _LAYOUT.unpack(
        packed[:HEADER_BYTES]
    )
    name = kernel.rstrip(b"\0").decode()
    chosen = Options(visit, form, reorder, deterministic, name, forward, backward, *skipped)
    return mask_id, chosen._replace(invariant=invariant)
