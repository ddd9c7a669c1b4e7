# SPDX-License-Identifier: Apache-2.0
"""plan(): what a GPU must know of a mask before it computes, made once for several layers."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any, Literal

import jax
from jax.custom_batching import custom_vmap

from flashmask._abi import structs as s
from flashmask._abi.header import Options as PlanOptions
from flashmask._abi.library import call
from flashmask._abi.problem import Problem, check_dropout
from flashmask._arguments import boolean, choice, described
from flashmask._options import LAYOUTS, ScoreArguments, options_of
from flashmask.jax._foreign import MULTIPLE, foreign_plan
from flashmask.jax._masks import Operand, mask_operand
from flashmask.jax._operands import problem_of
from flashmask.jax._site import Options
from flashmask.scores import ScoreChange


@jax.tree_util.register_pytree_node_class
@dataclass(frozen=True, eq=False)
class Plan:
    """A mask, and on a GPU what its tiles are, for calls of one shape; made by flashmask.jax.plan(). A pytree."""

    mask: Operand
    memory: Any
    """uint8 [n] in memory of the GPU; None where plans are kept elsewhere."""
    problem: Problem
    """Shapes, dtype, dropout and change of scores of the calls that the plan is for."""
    deterministic: bool
    invariant: bool

    def tree_flatten(self) -> tuple[tuple[Any, Any], tuple[Any, ...]]:
        """Returns the arrays, and what is known while tracing."""
        known = self.mask._replace(array=None), self.problem, self.deterministic, self.invariant
        return (self.mask.array, self.memory), known

    @classmethod
    def tree_unflatten(cls, known: tuple[Any, ...], arrays: tuple[Any, Any]) -> Plan:
        """Wraps, unchecked, whatever JAX puts in place of the arrays while it transforms a pytree."""
        mask, *others = known
        return cls(mask._replace(array=arrays[0]), arrays[1], *others)

    def check_fits(self, problem: Problem, deterministic: bool, invariant: bool) -> None:
        """Refuses a call that the plan was not made for."""
        for name, given, own in zip(problem._fields, problem, self.problem, strict=True):
            if given != own:
                raise ValueError(f"plan was made for {name} = {own}, and the call has {given}; make one for it")
        for name, given in (("deterministic", deterministic), ("invariant", invariant)):
            own = getattr(self, name)
            if given != own:
                raise ValueError(f"plan was made with {name}={own}, the call says {given}; say the same")


def plan(
    mask: Any,
    q: Any,
    k: Any,
    v: Any = None,
    *,
    layout: Literal["bshd", "bhsd"] = "bshd",
    deterministic: bool = False,
    invariant: bool = False,
    dropout: float = 0.0,
    score: ScoreChange | None = None,
) -> Plan:
    """Prepares attention under `mask` once, for every layer that has q, k and v of these shapes, forward and backward.

    On a GPU each call under a mask whose values are traced finds out anew which tiles are visible; a plan finds out
    once, and lies in an array that XLA keeps. Masks that are constants, and all masks on a CPU, need none: plans are
    found by what they were made from, and this returns the mask alone. Under jax.vmap, and where jit splits arrays, a
    plan is left aside, and each call finds out again.

    Args:
        mask: as for attention(), and not None.
        q: (batch, query length, query heads, head dim), of which only shape and dtype are read; or a
            jax.ShapeDtypeStruct.
        k: (batch, key length, kv heads, head dim).
        v: (batch, key length, kv heads, value dim); None: like k.
        layout, deterministic, invariant, dropout, score: as the calls will have them; of score, only its steps are
            read.

    Raises:
        ValueError, TypeError: an argument is not as described, or mask, q, k and v do not fit each other.
    """
    if mask is None:
        raise TypeError("mask is None; expected one: a call without a mask needs no plan")
    heads_first = choice("layout", layout, LAYOUTS) == 1
    change = options_of(plan, {"score": score}, ScoreArguments).score
    problem = problem_of([q, k, k if v is None else v], heads_first, check_dropout("dropout", dropout), change)
    operand = mask_operand(mask, problem)
    options = Options(
        causal=operand.causal,
        dropout=problem.dropout,
        deterministic=boolean("deterministic", deterministic),
        invariant=boolean("invariant", invariant),
        change=problem.change,
        most_documents=operand.most_documents if invariant else 0,
    )
    memory = None
    if jax.default_backend() == "gpu" and operand.name == Operand().name:
        padded = problem._replace(
            head_dim=-(-problem.head_dim // MULTIPLE) * MULTIPLE, value_dim=-(-problem.value_dim // MULTIPLE) * MULTIPLE
        )
        memory = _memory(options, padded, operand.array, _bytes_on_gpu(operand, padded, options))
    return Plan(operand, memory, problem, deterministic, invariant)


def _memory(options: Options, problem: Problem, mask: Any, size: int) -> Any:
    def refuse(*_: Any) -> Any:
        raise NotImplementedError(
            "flashmask.jax.plan: jax.vmap over a mask; leave the plan out there: each call finds its tiles itself"
        )

    make = custom_vmap(lambda mask: foreign_plan(options, problem, mask, size))
    make.def_vmap(refuse)
    return make(mask)


def check_plan(plan: object) -> Plan:
    """Returns a plan; refuses anything else."""
    if not isinstance(plan, Plan):
        raise TypeError(f"plan is {described(plan)}; expected what flashmask.jax.plan() returns")
    return plan


def _bytes_on_gpu(operand: Operand, problem: Problem, asked: Options) -> int:
    """The bytes of a plan on the first GPU."""
    batch, heads, *_, last = operand.array.shape
    is_bits = operand.array.dtype == "uint8"
    given = s.DeviceMask(
        kind=s.DEVICE_PACKED if is_bits else s.DEVICE_ROW_INDICES,
        vectors=0 if is_bits else last,
        causal=int(operand.causal),
        shape=s.MaskShape(batch, heads, problem.query_length, problem.key_length),
        data=1,  # only its being there is looked at: the values are not read
        most_documents=asked.most_documents,
    )
    size = ctypes.c_size_t()
    options = PlanOptions(deterministic=int(asked.deterministic), invariant=int(asked.invariant)).struct()
    on_gpu = problem._replace(device="cuda:0").struct()
    call("device_mask_plan_bytes", *map(ctypes.byref, (given, on_gpu, options, size)))
    return size.value
