# SPDX-License-Identifier: Apache-2.0
"""Local: what operators know about a sharding (one rank's part under one mask), and the tensor that stores it."""

from __future__ import annotations

import ctypes
import json
import os
from collections import OrderedDict
from dataclasses import dataclass, field, fields
from functools import cached_property
from itertools import pairwise
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch import Tensor

from flashmask._abi.header import Options
from flashmask._mask import Mask
from flashmask._plans.call import Call
from flashmask._plans.tile_sizes import TILES
from flashmask.distributed._exchange import Exchange
from flashmask.distributed._runs import Runs

_MAGIC = b"flashmask shard1"
_ID = slice(len(_MAGIC), len(_MAGIC) + 16)
_SIZES = slice(32, 56)  # int64: bytes of the numbers, of the mask and of the owner's mask
_HEADER_BYTES = 64
_KEPT = 8
_LARGE = TILES.index("large")


@dataclass(frozen=True, eq=False)
class Local:
    """One rank's part under one mask.

    Under the scheme "rows", `mask` has the rank's rows and the columns that it computes with, which `columns` fetches;
    `owners_rows` fetches the rows that see the rank's own keys, and `owners_mask` has these rows and keys. Under
    "heads", `mask` has all tokens, and `runs` says which tokens every rank holds.
    """

    scheme: str
    rank: int
    ranks: int
    tokens: int
    """Tokens of the whole sequence."""
    runs: list[Runs]
    heads: tuple[int, int]
    """Query heads and key heads."""
    head_groups: int
    keeps: bool
    """Whether keys and values that a forward fetched are kept for its backward."""
    agreed: str
    """A number that all ranks share, different for each sharding and mask."""
    mask: Mask
    columns: Exchange | None = None
    owners_mask: Mask | None = None
    owners_rows: Exchange | None = None
    tiles: tuple[int, int] = (0, 0)
    """Tile sizes of plans of the whole mask, forward and backward, as in Options: slices then give the same bits."""
    places: dict[Any, Tensor] = field(default_factory=dict, init=False, repr=False)
    """Dropout places that calls have needed; see _dropout.py."""
    positions: dict[Any, Tensor] = field(default_factory=dict, init=False, repr=False)
    """Positions that calls with ALiBi have needed; see _positions.py."""
    packed: dict[Any, Tensor] = field(default_factory=dict, init=False, repr=False)
    """Masks with options, as operators take them."""
    exchanges: dict[Any, Any] = field(default_factory=dict, init=False, repr=False)
    """Exchanges of tokens for heads that calls have needed; see _heads.py."""
    fitting: set[Any] = field(default_factory=set, init=False, repr=False)
    """Dtypes, shapes and devices of calls that passed the checks; see _checks.py."""

    def mask_tensor(self, call: Call) -> Tensor:
        """`mask` as operators take it. If there is an owners' mask, it skips gradients of keys: owners compute them."""
        return self._packed("mask", Options(skip_key_gradients=int(self.owners_mask is not None)), call)

    def owners_mask_tensor(self, call: Call) -> Tensor:
        """`owners_mask` as operators take it."""
        return self._packed("owners_mask", Options(skip_query_gradient=1), call)

    def _packed(self, name: str, options: Options, call: Call) -> Tensor:
        """Packs a mask with the tile sizes of the whole mask's plan, which are large ones where scores are changed."""
        forward, backward = (min(each, _LARGE) for each in self.tiles) if call.change else self.tiles
        options = options._replace(forward_tiles=forward, backward_tiles=backward)
        mask = getattr(self, name)
        if options == Options():
            tensor: Tensor = mask.tensor
            return tensor
        found = self.packed.get((name, options))
        if found is None:
            found = self.packed[name, options] = torch.from_numpy(mask._packed(options))
        return found

    @property
    def kept(self) -> int:
        """Columns that a forward keeps for its backward."""
        return self.columns.tokens if self.columns is not None and self.keeps else 0

    @cached_property
    def alone(self) -> bool:
        """Whether the rank holds tokens and computes without others, as one device would with its rows."""
        return bool(self.held and self.columns is not None and self.columns.silent)

    @cached_property
    def everything(self) -> Exchange:
        """The exchange that brings all tokens of the sequence together."""
        return Exchange.of(self.rank, self.runs, [[(0, self.tokens)] if self.tokens else []] * self.ranks)

    @cached_property
    def held(self) -> int:
        """How many tokens the rank holds."""
        return sum(end - begin for begin, end in self.runs[self.rank])

    def to_tensor(self) -> Tensor:
        """Packs it into uint8 [n] on the CPU, which any process of the rank can read."""
        numbers: dict[str, Any] = {name: getattr(self, name) for name in _NUMBERS}
        for name in _EXCHANGES:
            exchange = getattr(self, name)
            numbers[name] = exchange and {each.name: getattr(exchange, each.name) for each in fields(Exchange)}
        masks = (b"" if mask is None else mask.tensor.numpy() for mask in (self.mask, self.owners_mask))
        blocks = [np.frombuffer(block, np.uint8) for block in (json.dumps(numbers).encode(), *masks)]
        key = os.urandom(16)
        sizes = np.array([block.size for block in blocks], np.int64).tobytes()
        header = (_MAGIC + key + sizes).ljust(_HEADER_BYTES, b"\0")
        _alive[key] = self
        return torch.from_numpy(np.concatenate([np.frombuffer(header, np.uint8), *blocks]))


_EXCHANGES = ("columns", "owners_rows")
_NUMBERS = ("scheme", "rank", "ranks", "tokens", "runs", "heads", "head_groups", "keeps", "agreed", "tiles")
_alive: WeakValueDictionary[bytes, Local] = WeakValueDictionary()
_read: OrderedDict[bytes, Local] = OrderedDict()  # read from tensors that outlived their shardings, such as saved ones


def local_of(tensor: Tensor) -> Local:
    """Reads a tensor that Local.to_tensor() made."""
    whole = tensor.dtype is torch.uint8 and tensor.ndim == 1 and tensor.is_cpu and tensor.is_contiguous()
    header = ctypes.string_at(tensor.data_ptr(), _HEADER_BYTES) if whole and tensor.numel() > _HEADER_BYTES else b""
    if not header.startswith(_MAGIC):
        raise ValueError("sharding is a tensor that holds none; expected what flashmask.distributed.shard() made")
    key = header[_ID]
    local = _alive.get(key)
    if local is None:
        local = _alive[key] = _read[key] = _from_bytes(header, tensor.numpy())
        while len(_read) > _KEPT:
            _read.popitem(last=False)
    return local


def _from_bytes(header: bytes, given: np.ndarray[Any, np.dtype[np.uint8]]) -> Local:
    ends = np.cumsum([_HEADER_BYTES, *np.frombuffer(header[_SIZES], np.int64)])
    numbers, mask, owners_mask = (given[begin:end] for begin, end in pairwise(ends))
    values = json.loads(numbers.tobytes())
    for name in _EXCHANGES:
        values[name] = values[name] and Exchange(**values[name])
    return Local(**values, mask=Mask._unpack(mask), owners_mask=Mask._unpack(owners_mask) if owners_mask.size else None)
