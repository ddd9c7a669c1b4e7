# SPDX-License-Identifier: Apache-2.0
"""The plans that are alive, found by what they were made from."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import Any, Generic, TypeAlias, TypeVar
from weakref import WeakValueDictionary

from flashmask._plans.live_plan import AnyPlan

AnyKind = TypeVar("AnyKind")
Key: TypeAlias = tuple[Hashable | Sequence[int], ...]
"""Identifies the mask, the shapes of q, k and v, and the numbers that a plan depends on besides."""

MAX_PLANS = 32
MAX_BYTES = 256 << 20


class PlanCache(Generic[AnyKind]):
    """The most recently used plans, at most `max_plans` with masks of `max_bytes` in all; the newest always stays.

    A plan that something still holds (a Plan, a thread that runs it) is found even after it was evicted.
    """

    def __init__(self, max_plans: int = MAX_PLANS, max_bytes: int = MAX_BYTES) -> None:
        self._max_plans = max_plans
        self._max_bytes = max_bytes
        self._recent: OrderedDict[Key, tuple[AnyKind, int]] = OrderedDict()
        self._alive: WeakValueDictionary[Key, AnyKind] = WeakValueDictionary()
        self._bytes = 0
        self.last: Any = None
        """A shortcut to the plan of the last call: making a key takes longer than looking it up."""
        self.reset_lock()

    def reset_lock(self) -> None:
        """Replaces the lock in the child of a fork, where the thread that held it does not exist."""
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._recent)

    def find(self, key: Key) -> AnyKind | None:
        """Returns the plan of a key, which becomes the most recently used, or None."""
        with self._lock:
            entry = self._recent.get(key)
            if entry is not None:
                self._recent.move_to_end(key)
                return entry[0]
            return self._alive.get(key)

    def keep(self, key: Key, plan: AnyKind, mask_bytes: int) -> AnyKind:
        """Adds a plan and returns it, or the one that another thread added for the key meanwhile."""
        dropped = []  # destroyed after the lock is released
        with self._lock:
            present = self._recent.get(key)
            if present is not None:
                return present[0]
            plan = self._alive.setdefault(key, plan)
            self._recent[key] = (plan, mask_bytes)
            self._bytes += mask_bytes
            while len(self._recent) > 1 and (len(self._recent) > self._max_plans or self._bytes > self._max_bytes):
                entry = self._recent.popitem(last=False)[1]
                self._bytes -= entry[1]
                dropped.append(entry)
        return plan

    def clear(self) -> None:
        """Forgets every plan that nothing else holds."""
        self.last = None
        with self._lock:
            recent, self._recent = self._recent, OrderedDict()
            self._bytes = 0
        recent.clear()


plans: PlanCache[AnyPlan] = PlanCache()
os.register_at_fork(after_in_child=plans.reset_lock)
