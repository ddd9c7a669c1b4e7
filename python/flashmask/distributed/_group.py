# SPDX-License-Identifier: Apache-2.0
"""Process groups: found by name where operators run, and the check that all ranks were given the same."""

from __future__ import annotations

import hashlib
import weakref
import zlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from flashmask._arguments import described
from flashmask.distributed._lent import lend

_BACKENDS = ("gloo", "nccl")
_MESSAGE_BYTES = 1000
_DIGEST_BYTES = 8


class Group(NamedTuple):
    """A process group as one of its ranks sees it."""

    name: str
    rank: int
    size: int
    reference: Callable[[], Any]
    """Returns the ProcessGroup while it exists. Weak: PyTorch ends a group's threads when its last reference goes, and
    threads that outlive the interpreter abort the program at exit.
    """
    device: torch.device
    """The device of the tensors that its collectives take."""

    @property
    def handle(self) -> Any:
        """The ProcessGroup; raises if it was destroyed."""
        return checked_alive(self.reference())


_groups: dict[str, Group] = {}


def group_of(group_or_mesh: Any) -> Group:
    """Returns the group for a ProcessGroup or for a DeviceMesh with one dimension."""
    handle = group_or_mesh
    if isinstance(handle, DeviceMesh):
        if handle.ndim != 1:
            raise ValueError(
                f"the mesh has the dimensions {handle.mesh_dim_names or handle.ndim}; expected one of them, such as "
                'mesh["cp"]'
            )
        handle = handle.get_group()
    if not isinstance(handle, dist.ProcessGroup):
        first = "" if dist.is_initialized() else "; call torch.distributed.init_process_group() first"
        raise TypeError(f"group_or_mesh is {described(group_or_mesh)}; expected a ProcessGroup or a DeviceMesh{first}")
    checked_alive(handle)
    backends = str(dist.get_backend_config(handle))
    name = next((each for each in reversed(_BACKENDS) if each in backends), None)
    if name is None:
        raise ValueError(f"the group's backend is {backends}; expected {' or '.join(_BACKENDS)}")
    device = torch.device("cpu") if name == "gloo" else torch.device("cuda", torch.cuda.current_device())
    group = Group(handle.group_name, dist.get_rank(handle), dist.get_world_size(handle), weakref.ref(handle), device)
    _groups[group.name] = group
    return group


def group_named(name: str) -> Group:
    """Returns the group of an operator's call; a Sharding must have been made for it."""
    group = _groups.get(name)
    if group is None:
        raise RuntimeError(f"no sharding was made for the group {name!r} in this process; call shard() with it first")
    checked_alive(group.reference())
    return group


def checked_alive(handle: Any) -> Any:
    """Returns the ProcessGroup; raises if it was destroyed, since its collectives might wait for ever."""
    try:
        if handle is not None:  # PyTorch takes None for its default group
            dist.get_process_group_ranks(handle)
            return handle
    except (KeyError, ValueError, RuntimeError):
        pass
    raise RuntimeError("the process group was destroyed, or this rank is not in it; make a new sharding")


def digest(*values: bytes | Tensor) -> bytes:
    """Returns a few bytes that differ if the values do."""
    state = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for value in values:  # a mask of a million tokens has 24 MB: BLAKE2 would take 27 ms, this takes 7
        state.update(value if isinstance(value, bytes) else zlib.crc32(value.numpy().data).to_bytes(4, "little"))
    return state.digest()


def agree(group: Group, fields: Mapping[str, bytes], failure: Exception | None) -> None:
    """Does one small all_gather; every rank raises what any rank failed with, or says which `fields` differ and where.

    `fields` are digests by the name of what was digested, the same names on every rank; empty if there is a failure.
    """
    said = "" if failure is None else f"{type(failure).__name__}: {failure}"
    message = said.encode()[:_MESSAGE_BYTES].ljust(_MESSAGE_BYTES, b"\0")
    own = message + b"".join(fields.values())
    records = all_gather(group, own.ljust(_MESSAGE_BYTES + 16 * _DIGEST_BYTES, b"\0"))
    for rank, record in enumerate(records):
        text = record[:_MESSAGE_BYTES].rstrip(b"\0").decode(errors="replace")
        if text:
            raise RuntimeError(f"rank {rank}: {text}") from failure
    for place, name in enumerate(fields):
        start = _MESSAGE_BYTES + place * _DIGEST_BYTES
        given = [record[start : start + _DIGEST_BYTES] for record in records]
        others = [rank for rank, each in enumerate(given) if each != given[0]]
        if others:
            raise ValueError(
                f"{name} of rank {', '.join(map(str, others))} differ from those of rank 0; all ranks of the group "
                "must call with the same"
            )


def all_gather(group: Group, record: bytes) -> list[bytes]:
    """Returns the bytes of every rank; all records have the same length."""
    own = torch.frombuffer(bytearray(record), dtype=torch.uint8).to(group.device)
    found = [torch.empty_like(own) for _ in range(group.size)]
    dist.all_gather(found, own, group=group.handle)
    lend(own, *found)
    return [each.cpu().numpy().tobytes() for each in found]


def from_first(group: Group, tensor: Tensor) -> Tensor:
    """Returns the first rank's tensor on every rank; all have one shape and dtype, on the group's device."""
    found = tensor.clone()
    dist.broadcast(found, dist.get_global_rank(group.handle, 0), group=group.handle)
    lend(found)
    return found
