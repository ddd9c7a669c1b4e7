# SPDX-License-Identifier: Apache-2.0
"""Plan: everything about an attention call that is decided before data arrives, made once and shared."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from flashmask._abi import structs as s
from flashmask._abi.header import HEADER_BYTES, Options, read_header
from flashmask._abi.library import create
from flashmask._abi.problem import DTYPES, Problem, make_problem
from flashmask._arguments import boolean, check_dense, choice, copied, described, is_autocast, is_tensor
from flashmask._explain import Explanation
from flashmask._graph_break import breaks_graph
from flashmask._mask import Mask
from flashmask._options import CallOptions, PlanArguments, options_of
from flashmask._plans.cache import plans
from flashmask._plans.call import Call, key_on_cpu
from flashmask._plans.live_plan import AnyPlan, make_plan
from flashmask._plans.tile_sizes import TILES, tile_sizes
from flashmask._reordering import Reordering
from flashmask._rows import RowIndices
from flashmask.scores import OPERANDS, from_function, step_of

if TYPE_CHECKING:
    import torch
    from typing_extensions import Unpack

    from flashmask._torch.plans.device_plan import DevicePlan

VISITS = ("active", "all")
_FORMS = ("intervals", "bits")
_DIRECTIONS = ("forward", "backward")


class Plan:
    """The schedules and kernels of a mask and a problem, forward and backward; made by flashmask.plan().

    Immutable; any number of layers and threads share it. It can be pickled, and torch transforms see its tensor.
    """

    mask: Mask
    """The mask as it was given."""
    problem: Problem
    """Shapes, dtype, scale and change of scores of the calls that the plan is for."""

    def __init__(self, mask: Mask, problem: Problem, options: Options) -> None:
        """flashmask.plan() calls this, users do not."""
        self.mask = mask
        self.problem = problem
        self._shapes = problem.shapes
        self._options = options
        self._packed = mask._packed(options)
        self._live_plan: AnyPlan | DevicePlan | None = self._find_or_make()
        self._tensor: torch.Tensor | None = None
        if "torch" in sys.modules:  # torch.compile can read an attribute but not call the library
            self._make_tensor()

    @classmethod
    def _from_tensor(cls, tensor: Any, problem: Problem) -> Plan:
        """Makes the plan whose pytree leaf is `tensor`; what it needs to run is made when it is asked for."""
        plan = cls.__new__(cls)
        plan.mask = Mask._from_tensor(tensor)
        plan.problem = problem
        plan._shapes = problem.shapes
        plan._tensor = tensor
        plan._live_plan = None
        return plan

    def _find_or_make(self) -> AnyPlan | DevicePlan:
        problem = self.problem
        source = self._packed[:HEADER_BYTES].tobytes()
        if problem.device != "cpu":
            from flashmask._torch.plans.device_plans import plan_of_header

            return plan_of_header(source, self.mask, problem, self._options)
        call = Call.of(problem)
        key = key_on_cpu(source, problem.shapes, problem.code, call)
        found = plans.find(key)
        if found is None:
            made = make_plan("mask", self.mask, problem, self._options)
            found = plans.keep(key, made, self._packed.nbytes)
        return found

    @property
    def _live(self) -> AnyPlan | DevicePlan:
        if self._live_plan is None:
            self._packed = self.tensor.numpy()
            _, self._options = read_header(self._packed[:HEADER_BYTES].tobytes())
            self._live_plan = self._find_or_make()
        return self._live_plan

    @property
    def tensor(self) -> torch.Tensor:
        """The plan as operators take it: uint8 [n] on the CPU, a header with id and options, then the packed mask."""
        if self._tensor is None:
            self._make_tensor()
        assert self._tensor is not None
        return self._tensor

    def _make_tensor(self) -> None:
        from flashmask._torch.plan_pytree import register
        from flashmask._torch.shared import to_keep

        register()
        self._tensor = to_keep(self._packed)

    @property
    def reordering(self) -> Reordering | None:
        """The result of the option `reorder`; None where it was not asked for."""
        live = self._live
        if not self._options.reorder:
            return None
        view = live.reordering()
        shape = self.mask.shape
        rows, columns = copied(view.rows, shape.batch, shape.rows), copied(view.columns, shape.batch, shape.columns)
        return Reordering(
            mask=self.mask.permute(rows, columns) if view.gained else self.mask,
            rows=rows,
            columns=columns,
            gained=bool(view.gained),
            tile=(view.tile_rows, view.tile_columns),
            tiles_before=view.tiles_before,
            tiles_after=view.tiles_after,
            why=(view.why or b"").decode(),
        )

    def kernel(self, direction: Literal["forward", "backward"]) -> str:
        """Returns the kernel for "forward" or "backward" by name, such as "avx2.forward.f32.dany.m64n64.intervals"."""
        return self._live.kernel(choice("direction", direction, _DIRECTIONS))

    @property
    def invariant(self) -> bool:
        """Whether documents have the bits that they have alone."""
        self._live  # noqa: B018  reads the options of a plan that came from a tensor
        return bool(self._options.invariant)

    @property
    def tiles(self) -> tuple[str, str]:
        """Tile sizes of forward and backward: "large" or "small" where a kernel has both, else "automatic"."""
        self._live  # noqa: B018  reads the options of a plan that came from a tensor
        return tile_sizes(self.mask, self.problem, self._options)

    def explain(self) -> Explanation:
        """Explains what the mask costs in tiles of the forward kernel, and which kernels were compiled for it."""
        from flashmask._info import kernels

        name = self.kernel("forward")
        tiles = [kernel["tile"] for kernel in kernels() if kernel["name"] == name]
        explained = self.mask.explain(tuple(tiles[0]) if tiles else (128, 128))  # the reference has no tiles
        return replace(explained, compiled=self._live.compiled(s.FORWARD) + self._live.compiled(s.BACKWARD))

    def check_fits(self, q: Sequence[int], k: Sequence[int], v: Sequence[int]) -> None:
        """Refuses tensors of other shapes (batch, sequence, heads, head dim) than the plan is for."""
        if (q, k, v) == self._shapes:
            return
        for name, given, expected in zip("qkv", (q, k, v), self._shapes, strict=True):
            if tuple(given) != expected:
                raise ValueError(
                    f"{name} has (batch, sequence, heads, head dim) = {tuple(given)}; expected {expected}, which plan "
                    "was made for"
                )

    def __reduce__(self) -> tuple[Any, ...]:
        self._live  # noqa: B018  reads the options of a plan that came from a tensor
        return Plan, (self.mask, self.problem, self._options)

    def __copy__(self) -> Plan:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Plan:
        return self

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name}={value}" for name, value in self.problem._asdict().items())
        return f"<flashmask.Plan {sizes}, kernels={self.kernel('forward')}, {self.kernel('backward')}>"


@breaks_graph
def plan(
    mask: Mask | RowIndices | Any,
    q: Any,
    k: Any,
    v: Any = None,
    *,
    visit: Literal["active", "all"] = "active",
    form: Literal["intervals", "bits"] | None = None,
    kernel: str = "",
    reorder: bool = False,
    tiles: tuple[str, str] = ("automatic", "automatic"),
    **options: Unpack[PlanArguments],
) -> Plan:
    """Prepares attention under `mask` once, for every layer that has q, k and v of these shapes, forward and backward.

    Args:
        mask: a Mask, RowIndices, booleans as for masks.from_dense, or None when all is visible. The host waits for
            tensors on a GPU, and reads them once.
        q: a tensor or array (batch, query length, query heads, head dim), of which only shape, dtype and device are
            read.
        k: (batch, key length, kv heads, head dim).
        v: (batch, key length, kv heads, value dim); None: like k.
        scale: factor on the scores; None: 1 / sqrt(head dim).
        layout: "bshd", or "bhsd" for (batch, heads, sequence, head dim).
        visit: "active": tiles without a visible score are not computed; "all": they are, with the same bits as result.
        form: the lowered form that kernels read, "intervals" or "bits"; None: intervals where they are exact.
        kernel: a kernel name or the beginning of one; "": the best for the machine.
        reorder: compute in another order of tokens where that takes less work.
        deterministic: make gradients the same bits on every run, as torch.use_deterministic_algorithms asks for; on the
            CPU they always are.
        invariant: give every document the bits that it has alone, as for attention(). Not together with `reorder`, nor
            with a block map unless `form` is "bits".
        tiles: tile sizes of forward and backward: "large" or "small" where a GPU kernel has both; "automatic":
            whichever takes less time. A plan of a slice of a mask gives the bits of the whole if it is given Plan.tiles
            of the whole.
        score: a change of scores, of which the cap and the kind of bias are read: calls may leave out the cap, and pass
            operands of their own. Or a function, as attention() takes it, read by scores.from_function: calls pass it
            again. On a GPU, kernels that are compiled for a change are compiled here, forward and backward.
        softcap, alibi, bias, distance_bias: the same by keyword: the cap, and whether calls pass alibi_slopes, a bias
            or a distance_bias, one of the three at most.

    Raises:
        ValueError, TypeError: an argument is not as described, or mask, q, k and v do not fit each other.
        NotImplementedError: no kernel serves the request.
    """
    if callable(score := options.get("score")):
        options["score"] = from_function(score, q, k, layout=options.get("layout", "bshd"))
    given, change = _checked(options)
    of_plan = Options(
        visit=choice("visit", visit, VISITS),
        form=0 if form is None else 1 + choice("form", form, _FORMS),
        reorder=int(boolean("reorder", reorder)),
        deterministic=int(given.deterministic or _asked_for_deterministic()),
        invariant=int(given.invariant),
        kernel=_kernel_name(kernel),
        forward_tiles=choice("tiles[0]", _pair("tiles", tiles)[0], TILES),
        backward_tiles=choice("tiles[1]", tiles[1], TILES),
    )
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if isinstance(tensor, (Mask, RowIndices)):
            raise TypeError(f"{name} is a {type(tensor).__name__}; plan() takes the mask first: plan(mask, q, k, v)")
    if mask is not None and not isinstance(mask, (Mask, RowIndices)):
        check_booleans(mask)
    order = (0, 2, 1, 3) if given.heads_first else (0, 1, 2, 3)
    dtype = computed_dtype("q", q)
    shapes = [_shape(name, tensor, order) for name, tensor in (("q", q), ("k", k), ("v", k if v is None else v))]
    problem = make_problem(shapes, dtype, given.scale or None, 0.0)._replace(device=_device(q))
    problem = problem._replace(change=change)
    return Plan(as_mask(mask, problem), problem, of_plan)


def _checked(options: PlanArguments) -> tuple[CallOptions, str]:
    """Returns the options of the calls, and the text of their change of scores."""
    others: dict[str, Any] = {**options}
    kinds = [name for name in OPERANDS if boolean(name, others.pop(name, False))]
    given = options_of(plan, others, PlanArguments)
    steps = [given.score.text] if given.score.text else []
    if len(kinds) + bool(given.score.kind) > 1:
        raise ValueError("two of alibi, bias and distance_bias came together; scores take one bias")
    return given, " | ".join([*steps, *map(step_of, kinds)])


def as_mask(mask: Any, problem: Problem) -> Mask:
    """Converts whatever attention() takes for a mask to a Mask."""
    _check_values(mask.startend_row_indices if isinstance(mask, RowIndices) else mask)
    if isinstance(mask, Mask):
        return mask
    if isinstance(mask, RowIndices):
        from flashmask._torch.plans.mask_source import from_row_indices

        return from_row_indices(mask.startend_row_indices.detach().cpu(), mask.causal, problem)
    if mask is None:
        return Mask(create("mask_full", problem.query_length, problem.key_length))
    check_booleans(mask)
    from flashmask.masks._imports import from_booleans

    return from_booleans("mask", mask.cpu() if is_tensor(mask) else mask)


def _check_values(mask: object) -> None:
    """Refuses a tensor on meta, which has no values."""
    if is_tensor(mask) and mask.device.type == "meta":  # type: ignore[attr-defined]
        raise ValueError("mask is on meta, and has no values that a plan could be made of; expected one on a device")


def check_booleans(mask: object) -> None:
    """Refuses what is not booleans, where attention() was given neither a Mask nor RowIndices nor None."""
    if isinstance(mask, Plan):
        raise TypeError("mask is a Plan; pass it as plan=")
    if hasattr(mask, "mask_mod"):
        raise TypeError(
            f"mask is a {type(mask).__name__} of FlexAttention; expected a Mask, RowIndices, booleans or None: pass "
            "flashmask.masks.from_block_mask(mask)"
        )
    if not hasattr(mask, "dtype") and not isinstance(mask, (list, tuple)):
        raise TypeError(f"mask is {described(mask)}; expected a Mask, RowIndices, booleans or None")
    if is_tensor(mask):
        check_dense("mask", mask)
    if "float" in str(getattr(mask, "dtype", "")):
        raise TypeError(
            f"mask is {described(mask)}; expected booleans, True = visible: where it holds numbers to add to the "
            "scores, 0 or -inf, pass mask == 0"
        )


def dtype_name(name: str, tensor: Any) -> str:
    """Returns the dtype of a tensor or array, one of DTYPES."""
    if not (hasattr(tensor, "dtype") and hasattr(tensor, "shape")):
        raise TypeError(f"{name} is {described(tensor)}; expected a tensor or array")
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype not in DTYPES:
        raise TypeError(f"{name} has dtype {tensor.dtype}; expected {', '.join(DTYPES[:-1])} or {DTYPES[-1]}")
    return dtype


def computed_dtype(name: str, tensor: Any) -> str:
    """Returns dtype_name(), or the autocast dtype where torch is about to cast the tensor to it."""
    dtype = dtype_name(name, tensor)
    torch = sys.modules.get("torch")
    if torch is None or dtype == "float64" or not isinstance(tensor, torch.Tensor):
        return dtype
    device = tensor.device.type
    return str(torch.get_autocast_dtype(device))[6:] if is_autocast(device) else dtype


def _shape(name: str, tensor: Any, order: Sequence[int]) -> tuple[int, ...]:
    if not hasattr(tensor, "shape"):
        raise TypeError(f"{name} is {described(tensor)}; expected a tensor or array")
    if is_tensor(tensor):
        check_dense(name, tensor)
    shape = tuple(tensor.shape)
    return tuple(shape[axis] for axis in order) if len(shape) == 4 else shape


def _device(q: Any) -> str:
    return str(q.device) if is_tensor(q) and q.is_cuda else "cpu"


def _asked_for_deterministic() -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and torch.are_deterministic_algorithms_enabled()


def _pair(name: str, value: object) -> tuple[Any, Any]:
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise TypeError(f"{name} is {described(value)}; expected a pair: of the forward and of the backward")
    return value[0], value[1]


def _kernel_name(kernel: object) -> str:
    if not isinstance(kernel, str):
        raise TypeError(f"kernel is {described(kernel)}; expected a kernel name or the beginning of one")
    return kernel
