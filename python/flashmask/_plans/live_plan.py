# SPDX-License-Identifier: Apache-2.0
"""Plans that run: one of the compiled library, or the reference for float64."""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

from flashmask._abi import structs as s
from flashmask._abi.header import Options
from flashmask._abi.library import call, check, create, library
from flashmask._abi.problem import F64, Problem, check_mask
from flashmask._explain import CompiledKernel
from flashmask._mask import Mask
from flashmask._plans.handle import Handle

View: TypeAlias = tuple[int, Sequence[int]]
"""Address and strides [4], in elements, of a tensor (batch, sequence, heads, head dim)."""
Addresses: TypeAlias = tuple[int, int, int]
"""Addresses of the gradients of q, k and v, which are contiguous."""
Saved: TypeAlias = tuple[View, View, View, View, int]
"""q, k, v, o, and the address of lse."""
Tangents: TypeAlias = tuple[View | None, View | None, View | None]
"""Tangents of q, k and v; None: zeros."""
Sinks: TypeAlias = tuple[int, int, int]
"""Address, position in DTYPES and number of dimensions of contiguous sinks, [heads] or [batch, heads, rows]."""
SinkGradient: TypeAlias = tuple[Sinks, int]
"""Sinks, and the address of their gradient, which has their layout."""


class Alibi(NamedTuple):
    """Addresses of contiguous slopes, [heads] or [batch, heads], and of positions, [1 or batch, tokens] (0: none)."""

    slopes: int
    slope_dimensions: int
    query_positions: int = 0
    query_entries: int = 0
    key_positions: int = 0
    key_entries: int = 0


class Bias(NamedTuple):
    """A bias tensor or a table of distances, with the gradient that is wanted of it."""

    address: int
    code: int
    """Position of the dtype in DTYPES."""
    shape: Sequence[int]
    strides: Sequence[int]
    """In elements."""
    origin: int = 0
    """The entry of distance 0."""
    gradient: int = 0
    """Address of the gradient, contiguous; 0: it is not wanted."""


class Read(NamedTuple):
    """The operands that a function of scores reads, of 1 to 4 dimensions, and the bias that it reads besides."""

    bias: Bias | None
    operands: Sequence[Bias]


AnyBias: TypeAlias = Alibi | Bias | Read


class Drawn(NamedTuple):
    """Values that a call's dropout depends on: the last fields of a flashmask_execution."""

    seed: int = 0
    offset: int = 0
    on_device: int = 0
    """The GPU address of seed and offset; 0: `seed` and `offset` hold them."""
    place: int = 0
    """The address of a packed place, on the call's device; 0: there is none."""
    place_size: int = 0


# A call describes its tensors with flashmask_tensor structs. All but addresses and strides is the same for every call
# of a plan, so it is kept as bytes, and one pack() makes the whole struct: five times as fast as setting ctypes fields.
# Tensors without gaps (lse, and what a call writes) have their strides in the bytes too.
_TENSOR = "Q48s4q"
_WHOLE = "Q80s"
_FORWARD = struct.Struct("=Q" + 3 * _TENSOR + 2 * _WHOLE)
_BACKWARD = struct.Struct("=Q" + 4 * _TENSOR + _WHOLE + _TENSOR + 4 * _WHOLE)
_FORWARD_OF_SINKS = struct.Struct(_FORWARD.format + _WHOLE)
_BACKWARD_OF_SINKS = struct.Struct(_BACKWARD.format + 2 * _WHOLE)
_FORWARD_OF_ALIBI = struct.Struct(_FORWARD_OF_SINKS.format + 3 * _WHOLE)
_BACKWARD_OF_ALIBI = struct.Struct(_BACKWARD_OF_SINKS.format + 3 * _WHOLE)
_FORWARD_OF_BIAS = struct.Struct(_FORWARD_OF_ALIBI.format + _WHOLE + "q")
_FORWARD_OF_MAX_SCORES = struct.Struct(_FORWARD_OF_BIAS.format + _WHOLE)
_BACKWARD_OF_BIAS = struct.Struct(_BACKWARD_OF_ALIBI.format + _WHOLE + "q" + _WHOLE)
_OPERANDS = 4 * _WHOLE
_FORWARD_OF_OPERANDS = struct.Struct(_FORWARD_OF_MAX_SCORES.format + _OPERANDS)
_BACKWARD_OF_OPERANDS = struct.Struct(_BACKWARD_OF_BIAS.format + _OPERANDS)
_TANGENTS = struct.Struct("=Q" + 4 * _TENSOR + _WHOLE + 3 * _TENSOR + 7 * _WHOLE + "q" + _OPERANDS)
_EXECUTION = struct.Struct("=10Q")
_DESCRIPTION = struct.Struct("=4i4q")
_STRIDES = struct.Struct("=4q")
_ABSENT = bytes(80)
_NO_TENSOR = 0, _ABSENT
_NO_ALIBI = _NO_TENSOR * 3
_NO_VIEW = 0, bytes(48), 0, 0, 0, 0
# Calls without sinks, ALiBi, a bias, max_scores or operands pass shorter structs; their size says so.
assert _FORWARD.size == s.ForwardTensors.sinks.offset
assert _BACKWARD.size == s.BackwardTensors.sinks.offset
assert _FORWARD_OF_SINKS.size == s.ForwardTensors.alibi_slopes.offset
assert _BACKWARD_OF_SINKS.size == s.BackwardTensors.alibi_slopes.offset
assert _FORWARD_OF_ALIBI.size == s.ForwardTensors.bias.offset
assert _BACKWARD_OF_ALIBI.size == s.BackwardTensors.bias.offset
assert _FORWARD_OF_BIAS.size == s.ForwardTensors.max_scores.offset
assert _FORWARD_OF_MAX_SCORES.size == s.ForwardTensors.operands.offset
assert _BACKWARD_OF_BIAS.size == s.BackwardTensors.operands.offset
assert _FORWARD_OF_OPERANDS.size == ctypes.sizeof(s.ForwardTensors)
assert _BACKWARD_OF_OPERANDS.size == ctypes.sizeof(s.BackwardTensors)
assert _TANGENTS.size == ctypes.sizeof(s.TangentTensors)
assert _EXECUTION.size == ctypes.sizeof(s.Execution)

_forward = library.flashmask_forward
_backward = library.flashmask_backward


def execution(drawn: Drawn, workspace: int, workspace_bytes: int, stream: int) -> bytes:
    """Packs a flashmask_execution; `workspace` is an address."""
    return _EXECUTION.pack(_EXECUTION.size, 0, workspace, workspace_bytes, stream, *drawn)


def _on_cpu(drawn: Drawn | None) -> bytes | None:
    return None if drawn is None else execution(drawn, 0, 0, 0)


class CompiledPlan:
    """A plan of the compiled library, and what all of its calls have in common."""

    def __init__(self, handle: int, problem: Problem) -> None:
        """Takes over a handle of the C ABI."""
        self._owner = Handle(handle, library.flashmask_plan_destroy)
        self._handle = handle
        given = problem.struct()

        def described(code: int, shape: Sequence[int]) -> bytes:
            """Packs the fields of a flashmask_tensor between its address and its strides."""
            unused = (0,) * (4 - len(shape))
            return _DESCRIPTION.pack(code, given.device_type, given.device_index, len(shape), *shape, *unused)

        def whole(code: int, shape: Sequence[int]) -> bytes:
            """Packs described() and the strides of a tensor without gaps."""
            strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
            return described(code, shape) + _STRIDES.pack(*strides, *(0,) * (4 - len(shape)))

        q, k, v = problem.shapes
        batch, rows, heads, value_dim = *q[:3], v[3]
        o = batch, rows, heads, value_dim
        self._q, self._k, self._v, self._o = (described(problem.code, shape) for shape in (q, k, v, o))
        self._whole_q, self._whole_k, self._whole_v, self._whole_o = (
            whole(problem.code, shape) for shape in (q, k, v, o)
        )
        self._float32_k, self._float32_v = whole(s.F32, k), whole(s.F32, v)
        self._lse = whole(s.F32, (batch, heads, rows))
        self._sinks = {
            (code, len(shape)): whole(code, shape)
            for code in {s.F32, problem.code}
            for shape in ((heads,), (batch, heads, rows))
        }
        self._slopes = {len(shape): whole(s.F32, shape) for shape in ((heads,), (batch, heads))}
        self._query_positions = {entries: whole(s.F32, (entries, rows)) for entries in {1, batch}}
        self._device = given.device_type, given.device_index
        self._key_positions = {entries: whole(s.F32, (entries, k[1])) for entries in {1, batch}}

    def _of_alibi(self, alibi: Alibi) -> tuple[int | bytes, ...]:
        of_rows = alibi.query_positions, self._query_positions.get(alibi.query_entries, _ABSENT)
        of_columns = alibi.key_positions, self._key_positions.get(alibi.key_entries, _ABSENT)
        return alibi.slopes, self._slopes[alibi.slope_dimensions], *of_rows, *of_columns

    def _of_anything(self, bias: AnyBias | None) -> tuple[int | bytes, ...]:
        """Packs what a call's scores are changed by, but for operands: ALiBi's tensors, a bias and its origin."""
        if isinstance(bias, Read):
            bias = bias.bias
        if isinstance(bias, Bias):
            return self._of_bias(bias)
        return *(_NO_ALIBI if bias is None else self._of_alibi(bias)), *_NO_TENSOR, 0

    def _of_operands(self, bias: AnyBias | None) -> tuple[int | bytes, ...]:
        packed: list[int | bytes] = []
        for each in bias.operands if isinstance(bias, Read) else ():
            unused = (0,) * (4 - len(each.shape))
            description = _DESCRIPTION.pack(each.code, *self._device, len(each.shape), *each.shape, *unused)
            packed += [each.address, description + _STRIDES.pack(*each.strides, *unused)]
        return *packed, *_NO_TENSOR * (4 - len(packed) // 2)

    def _of_bias(self, bias: Bias) -> tuple[int | bytes, ...]:
        """Packs the tensors of ALiBi, which are absent, and a bias and its origin."""
        description = _DESCRIPTION.pack(bias.code, *self._device, 4, *bias.shape)
        tensor = bias.address, description + _STRIDES.pack(*bias.strides)
        return *_NO_ALIBI, *tensor, bias.origin

    def _of_bias_gradient(self, bias: Bias | None) -> tuple[int | bytes, ...]:
        if bias is None or not bias.gradient:
            return _NO_TENSOR
        strides = [math.prod(bias.shape[axis + 1 :]) for axis in range(4)]
        description = _DESCRIPTION.pack(bias.code, *self._device, 4, *bias.shape)
        return bias.gradient, description + _STRIDES.pack(*strides)

    def _run_forward(
        self,
        q: View,
        k: View,
        v: View,
        o: int,
        lse: int,
        execution: bytes | None,
        sinks: Sinks | None,
        bias: AnyBias | None,
        max_scores: int,
    ) -> None:
        fields = (
            *(q[0], self._q, *q[1], k[0], self._k, *k[1], v[0], self._v, *v[1]),
            *(o, self._whole_o, lse, self._lse),
        )
        of_sinks = _NO_TENSOR if sinks is None else (sinks[0], self._sinks[sinks[1:]])
        if max_scores or isinstance(bias, Read):
            tensors = _FORWARD_OF_OPERANDS.pack(
                *(_FORWARD_OF_OPERANDS.size, *fields, *of_sinks, *self._of_anything(bias)),
                *(max_scores, self._lse if max_scores else _ABSENT),
                *self._of_operands(bias),
            )
        elif isinstance(bias, Bias):
            tensors = _FORWARD_OF_BIAS.pack(_FORWARD_OF_BIAS.size, *fields, *of_sinks, *self._of_bias(bias))
        elif bias is not None:
            tensors = _FORWARD_OF_ALIBI.pack(_FORWARD_OF_ALIBI.size, *fields, *of_sinks, *self._of_alibi(bias))
        elif sinks is None:
            tensors = _FORWARD.pack(_FORWARD.size, *fields)
        else:
            tensors = _FORWARD_OF_SINKS.pack(_FORWARD_OF_SINKS.size, *fields, *of_sinks)
        status = _forward(self._handle, tensors, execution)
        if status:
            check(status)

    def _run_backward(
        self,
        saved: Saved,
        grads: tuple[View, int],
        out: Addresses,
        execution: bytes | None,
        sinks: SinkGradient | None,
        float32_key_gradients: bool,
        bias: AnyBias | None,
    ) -> None:
        q, k, v, o, lse = saved
        grad_o, grad_lse = grads
        grad_k = self._float32_k if float32_key_gradients else self._whole_k
        grad_v = self._float32_v if float32_key_gradients else self._whole_v
        fields = (
            *(q[0], self._q, *q[1], k[0], self._k, *k[1], v[0], self._v, *v[1], o[0], self._o, *o[1]),
            *(lse, self._lse, grad_o[0], self._o, *grad_o[1], grad_lse, self._lse if grad_lse else _ABSENT),
            *(out[0], self._whole_q, out[1], grad_k, out[2], grad_v),
        )
        of_sinks: tuple[int | bytes, ...] = (*_NO_TENSOR, *_NO_TENSOR)
        if sinks is not None:
            given, gradient = sinks
            described = self._sinks[given[1:]]
            of_sinks = given[0], described, gradient, described
        if isinstance(bias, Read):
            of_bias = *self._of_anything(bias), *self._of_bias_gradient(bias.bias), *self._of_operands(bias)
            tensors = _BACKWARD_OF_OPERANDS.pack(_BACKWARD_OF_OPERANDS.size, *fields, *of_sinks, *of_bias)
        elif isinstance(bias, Bias):
            of_bias = *self._of_bias(bias), *self._of_bias_gradient(bias)
            tensors = _BACKWARD_OF_BIAS.pack(_BACKWARD_OF_BIAS.size, *fields, *of_sinks, *of_bias)
        elif bias is not None:
            tensors = _BACKWARD_OF_ALIBI.pack(_BACKWARD_OF_ALIBI.size, *fields, *of_sinks, *self._of_alibi(bias))
        elif sinks is None:
            tensors = _BACKWARD.pack(_BACKWARD.size, *fields)
        else:
            tensors = _BACKWARD_OF_SINKS.pack(_BACKWARD_OF_SINKS.size, *fields, *of_sinks)
        status = _backward(self._handle, tensors, execution)
        if status:
            check(status)

    def _run_tangents(
        self,
        saved: Saved,
        tangents: Tangents,
        out: tuple[int, int],
        execution: bytes | None,
        sinks: Sinks | None,
        bias: AnyBias | None,
    ) -> None:
        q, k, v, o, lse = saved
        descriptions = self._q, self._k, self._v
        given = [
            _NO_VIEW if tangent is None else (tangent[0], described, *tangent[1])
            for tangent, described in zip(tangents, descriptions, strict=True)
        ]
        tensors = _TANGENTS.pack(
            _TANGENTS.size,
            *(q[0], self._q, *q[1], k[0], self._k, *k[1], v[0], self._v, *v[1], o[0], self._o, *o[1]),
            *(lse, self._lse, *given[0], *given[1], *given[2], out[0], self._whole_o, out[1], self._lse),
            *(_NO_TENSOR if sinks is None else (sinks[0], self._sinks[sinks[1:]])),
            *self._of_anything(bias),
            *self._of_operands(bias),
        )
        status = library.flashmask_forward_tangents(self._handle, tensors, execution)
        if status:
            check(status)

    def kernel(self, direction: int) -> str:
        """Returns the name of the kernel of a direction."""
        name = ctypes.c_char_p()
        call("plan_kernel", self._handle, direction, ctypes.byref(name))
        return (name.value or b"").decode()

    def compiled(self, direction: int) -> tuple[CompiledKernel, ...]:
        """Returns the kernels of a direction that were compiled for its change of scores; none without a kernel."""
        found: list[CompiledKernel] = []
        given = s.CompiledKernel()
        while library.flashmask_plan_compiled_kernel(self._handle, direction, len(found), ctypes.byref(given)) == s.OK:
            if not given.name:
                break
            found.append(
                CompiledKernel(
                    direction=("forward", "backward")[direction],
                    name=given.name.decode(),
                    origin=("compiler", "disk", "memory")[given.origin],
                    seconds=given.seconds,
                    spilled_bytes=given.spilled,
                    compiler=given.compiler.decode(),
                )
            )
        return tuple(found)

    def reordering(self) -> s.ReorderingView:
        """Returns a view that lives as long as the plan."""
        view = s.ReorderingView()
        call("plan_reordering", self._handle, ctypes.byref(view))
        return view


class LivePlan(CompiledPlan):
    """A plan for the CPU."""

    contiguous = False
    """Whether tensors must be contiguous, rather than only have a last stride of 1."""

    def __init__(self, name: str, mask: Mask, problem: Problem, options: Options) -> None:
        check_mask(name, mask.shape, problem)
        given = ctypes.byref(problem.struct()), ctypes.byref(options.struct())
        super().__init__(create("plan_create", mask._handle, *given), problem)

    def forward(
        self,
        q: View,
        k: View,
        v: View,
        o: int,
        lse: int,
        drawn: Drawn | None,
        sinks: Sinks | None = None,
        bias: AnyBias | None = None,
        max_scores: int = 0,
    ) -> None:
        """Writes o and, (batch, heads, rows), lse and max_scores (0: not wanted) without gaps at these addresses."""
        self._run_forward(q, k, v, o, lse, _on_cpu(drawn), sinks, bias, max_scores)

    def backward(
        self,
        saved: Saved,
        grads: tuple[View, int],
        out: Addresses,
        drawn: Drawn | None,
        sinks: SinkGradient | None = None,
        float32_key_gradients: bool = False,
        bias: AnyBias | None = None,
    ) -> None:
        """Writes the gradients of q, k, v, the sinks and the bias, given those of o and lse (0: none)."""
        self._run_backward(saved, grads, out, _on_cpu(drawn), sinks, float32_key_gradients, bias)

    def forward_tangents(
        self,
        saved: Saved,
        tangents: Tangents,
        out: tuple[int, int],
        drawn: Drawn | None,
        sinks: Sinks | None = None,
        bias: AnyBias | None = None,
    ) -> None:
        """Writes the tangents of o and lse, both without gaps, at the addresses `out`."""
        self._run_tangents(saved, tangents, out, _on_cpu(drawn), sinks, bias)


class ReferencePlan:
    """The dense reference in double precision behind the same functions."""

    contiguous = True

    def __init__(self, name: str, mask: Mask, problem: Problem, options: Options) -> None:
        check_mask(name, mask.shape, problem)
        if options._replace(deterministic=0, invariant=0) != Options():
            raise ValueError(
                "q has dtype float64, which the reference computes; it has no visit, form, kernel, reorder or tiles: "
                "leave them at their defaults"
            )
        self._mask = mask
        self._problem = problem.struct()
        self._rows = problem.batch * problem.query_length

    def _arguments(
        self, q: View, k: View, v: View, drawn: Drawn | None, sinks: Sinks | None, bias: AnyBias | None
    ) -> tuple[Any, ...]:
        inputs = s.ReferenceInputs(q[0], k[0], v[0])
        if drawn is not None:
            inputs.dropout_seed, inputs.dropout_offset, _, inputs.dropout_place, inputs.dropout_place_size = drawn
        if sinks is not None:
            inputs.sinks, _, dimensions = sinks
            inputs.sink_count = self._problem.query_heads * (1 if dimensions == 1 else self._rows)
        if isinstance(bias, Read):
            for i, each in enumerate(bias.operands):
                inputs.operands[i] = each.address
                inputs.operand_shapes[4 * i : 4 * i + len(each.shape)] = tuple(each.shape)
            bias = bias.bias
        if isinstance(bias, Bias):
            inputs.bias, inputs.bias_shape, inputs.bias_origin = bias.address, tuple(bias.shape), bias.origin
        elif bias is not None:
            problem = self._problem
            inputs.alibi_slopes, inputs.query_positions, inputs.key_positions = bias[::2]
            inputs.alibi_slope_count = problem.query_heads * (1 if bias.slope_dimensions == 1 else problem.batch)
            inputs.query_position_count = problem.query_length * bias.query_entries
            inputs.key_position_count = problem.key_length * bias.key_entries
        return self._mask._handle, ctypes.byref(self._problem), ctypes.byref(inputs)

    def forward(
        self,
        q: View,
        k: View,
        v: View,
        o: int,
        lse: int,
        drawn: Drawn | None,
        sinks: Sinks | None = None,
        bias: AnyBias | None = None,
        max_scores: int = 0,
    ) -> None:
        """Does what LivePlan.forward() does, with lse, max_scores, sinks and biases in double precision too."""
        given = self._arguments(q, k, v, drawn, sinks, bias)
        call("reference_forward", *given, o, lse)
        if max_scores:
            call("reference_max_scores", *given, max_scores)

    def backward(
        self,
        saved: Saved,
        grads: tuple[View, int],
        out: Addresses,
        drawn: Drawn | None,
        sinks: SinkGradient | None = None,
        float32_key_gradients: bool = False,
        bias: AnyBias | None = None,
    ) -> None:
        """Does what LivePlan.backward() does, all in double precision."""
        q, k, v, _, _ = saved
        gradients = grads[0][0], grads[1] or None
        given = self._arguments(q, k, v, drawn, None if sinks is None else sinks[0], bias)
        call("reference_backward", *given, *gradients, *out)
        if sinks is not None:
            call("reference_backward_sinks", *given, *gradients, sinks[1])
        if isinstance(bias, Read):
            bias = bias.bias
        if isinstance(bias, Bias) and bias.gradient:
            call("reference_backward_bias", *given, *gradients, bias.gradient)

    def forward_tangents(
        self,
        saved: Saved,
        tangents: Tangents,
        out: tuple[int, int],
        drawn: Drawn | None,
        sinks: Sinks | None = None,
        bias: AnyBias | None = None,
    ) -> None:
        """Does what LivePlan.forward_tangents() does, all in double precision."""
        q, k, v, _, _ = saved
        given = [None if tangent is None else tangent[0] for tangent in tangents]
        call("reference_forward_tangents", *self._arguments(q, k, v, drawn, sinks, bias), *given, *out)

    def kernel(self, direction: int) -> str:
        """Returns the name of the only kernel."""
        return "reference"

    def compiled(self, direction: int) -> tuple[CompiledKernel, ...]:
        """Returns none: the reference compiles nothing."""
        return ()

    def reordering(self) -> s.ReorderingView:
        """Returns an empty view: a reordering cannot be asked for."""
        return s.ReorderingView()


AnyPlan: TypeAlias = LivePlan | ReferencePlan


def make_plan(name: str, mask: Mask, problem: Problem, options: Options) -> AnyPlan:
    """Makes a plan for the CPU; `name` is what messages call the mask."""
    return (ReferencePlan if problem.code == F64 else LivePlan)(name, mask, problem, options)
