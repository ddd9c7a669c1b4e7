# SPDX-License-Identifier: Apache-2.0
"""Functions of Transformers' hybrid models that carry a state, run over the nodes of the layer's mask.

A model's own module calls them by name: convolutions, gated delta rules, scans. Each wrapper calls the original where
the mask is a plain sequence per batch entry, else flashmask.recurrent, and flashmask.distributed where tokens are
spread over ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from inspect import signature
from types import ModuleType
from typing import Any, NoReturn

import torch
from torch import Tensor
from transformers.activations import ACT2FN

from flashmask import distributed
from flashmask._nodes import Nodes
from flashmask.distributed import Sharding
from flashmask.recurrent import causal_conv, one_by_one, over_nodes
from flashmask.transformers._running import Running

#: What carries a state and runs, with the nodes of its batch, or the sharding of its tokens, which has them; None: a
#: plain sequence per entry, padded or not.
carriers: Running[Nodes | Sharding | None] = Running()
#: Keywords by which models say where documents begin; nodes say it here, and originals without a kernel refuse these.
_SAID_BY_NODES = ("cu_seqlens", "seq_idx", "cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")


def serve(module: ModuleType) -> None:
    """Wraps the functions of a model's module that carry a state; calling it again changes nothing."""
    for name, (make, parameters) in _SERVED.items():
        original = vars(module).get(name)
        if original is None or hasattr(original, "__flashmask_original__"):
            continue
        if not parameters <= set(signature(original).parameters):
            continue  # another version's: served_names() does not count it
        wrapper = _where_forked(original, make(original))
        wrapper.__flashmask_original__ = original  # type: ignore[attr-defined]
        setattr(module, name, wrapper)


def served_names(module: ModuleType) -> set[str]:
    """Returns the names of a module's functions that serve() has wrapped."""
    return {name for name in _SERVED if hasattr(vars(module).get(name), "__flashmask_original__")}


def _where_forked(original: Callable[..., Any], forked: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that calls `forked` with what the running layer was told first, else `original`."""

    @wraps(original)
    def run(*arguments: Any, **options: Any) -> Any:
        if not carriers.held:
            return original(*arguments, **options)
        options = {name: value for name, value in options.items() if name not in _SAID_BY_NODES}
        told = carriers.told
        return original(*arguments, **options) if told is None else forked(told, *arguments, **options)

    return torch.compiler.disable(run)  # type: ignore[no-untyped-call,no-any-return]


def _convolution(_: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def convolve(
        told: Nodes | Sharding,
        hidden_states: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        activation: str | None = None,
        **_: Any,
    ) -> Tensor:
        if isinstance(told, Sharding):
            convolve_rows = partial(distributed.causal_conv, sharding=told)
        else:
            convolve_rows = partial(causal_conv, nodes=told)
            length = told.tokens // len(hidden_states)
            hidden_states = hidden_states[..., -length:]  # without zeros that a new cache puts in front of a short one
        found = convolve_rows(hidden_states.transpose(1, 2).to(weight.dtype), weight, bias).transpose(1, 2)
        return (found if activation is None else ACT2FN[activation](found)).to(hidden_states.dtype)

    return convolve


def _delta_rule(original: Callable[..., Any]) -> Callable[..., Any]:
    def compute(
        told: Nodes | Sharding,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        g: Tensor,
        beta: Tensor,
        *,
        initial_state: Tensor | None = None,
        output_final_state: bool = False,
        **options: Any,
    ) -> tuple[Tensor, Tensor | None]:
        if initial_state is not None:
            refuse_past()

        def run(q: Tensor, k: Tensor, v: Tensor, gate: Tensor, rate: Tensor, **states: Any) -> Any:
            return original(q, k, v, g=gate, beta=rate, **states, **options)

        return _with_last_states(_packed(run), told, (query, key, value, g, beta), output_final_state)

    return compute


def _chunk_scan(original: Callable[..., Any]) -> Callable[..., Any]:
    def compute(
        told: Nodes | Sharding,
        hidden_states: Tensor,
        dt: Tensor,
        A: Tensor,
        B: Tensor,
        C: Tensor,
        *,
        chunk_size: int,
        initial_states: Tensor | None = None,
        return_final_states: bool = False,
        z: Tensor | None = None,
        D: Tensor | None = None,
        dt_bias: Tensor | None = None,
        **options: Any,
    ) -> Any:
        if initial_states is not None:
            refuse_past()

        def run(*given: Any, parameters: Any, initial_state: Tensor | None, output_final_state: bool) -> Any:
            (x, step, b, c, gate), (decay, direct, bias) = given, parameters
            found = original(
                *(x, step, decay, b, c),
                chunk_size=chunk_size,
                z=gate,
                D=direct,
                dt_bias=bias,
                initial_states=initial_state,
                return_final_states=output_final_state,
                **options,
            )
            return found if output_final_state else (found, None)

        inputs = (hidden_states, dt, B, C, z)
        output, state = _with_last_states(one_by_one(run), told, inputs, return_final_states, (A, D, dt_bias))
        return (output, state) if return_final_states else output

    return compute


def _selective_scan(original: Callable[..., Any]) -> Callable[..., Any]:
    """Mamba's first scan has channels before tokens, each a head of its own, and takes no state to begin from."""

    def compute(
        told: Nodes | Sharding,
        hidden_states: Tensor,
        dt: Tensor,
        A: Tensor,
        B: Tensor,
        C: Tensor,
        *,
        D: Tensor | None = None,
        z: Tensor | None = None,
        delta_bias: Tensor | None = None,
        return_last_state: bool = False,
        **options: Any,
    ) -> Any:
        if _nodes_of(told).depth > 1:
            raise ValueError(
                "a mask in which sequences share a prefix came to a layer of Mamba 1, whose scan takes no state to "
                "begin from; repeat the prefix instead, or pack whole documents"
            )

        def run(*given: Any, parameters: Any, initial_state: None, output_final_state: bool) -> Any:
            decay, direct, bias = parameters
            x, step, gate, b, c = given
            x, step, b, c = (each.transpose(1, 2) for each in (x, step, b, c))
            found = original(
                *(x, step, decay, b[:, 0].transpose(1, 2), c[:, 0].transpose(1, 2)),
                D=direct,
                z=None if gate is None else gate.transpose(1, 2),
                delta_bias=bias,
                return_last_state=output_final_state,
                **options,
            )
            output, state = found if output_final_state else (found, None)
            return output.transpose(1, 2), state

        gate = None if z is None else z.transpose(1, 2)
        x, step, b, c = (each.transpose(1, 2) for each in (hidden_states, dt, B, C))
        inputs = (x, step, gate, b[:, :, None], c[:, :, None])
        output, state = _with_last_states(one_by_one(run), told, inputs, return_last_state, (A, D, delta_bias))
        output = output.transpose(1, 2)
        return (output, state) if return_last_state else output

    return compute


def _nothing(_: Callable[..., Any]) -> Callable[..., None]:
    """Stands for a fused kernel; models take their other path where it returns nothing, as without that kernel."""
    return lambda nodes, *arguments, **options: None


def _with_last_states(
    run: Callable[..., Any],
    told: Nodes | Sharding,
    inputs: tuple[Tensor | None, ...],
    wants_states: bool,
    parameters: tuple[Tensor | None, ...] = (),
) -> tuple[Tensor, Any]:
    """Returns the output and, if wanted, the state behind the last node of each batch entry, which a cache keeps.

    `parameters` have an entry per head or channel; `run` takes them as a keyword if there are some.
    """
    if isinstance(told, Sharding):
        if wants_states:
            refuse_cache_over_ranks()
        return distributed.over_nodes(run, told, *inputs, parameters=parameters), None

    run = partial(run, parameters=parameters) if parameters else run
    if not wants_states:
        return over_nodes(run, told, *inputs), None
    output, states = over_nodes(run, told, *inputs, output_final_state=True)
    length = output.shape[1]
    last = [int((told.begins < (entry + 1) * length).sum()) - 1 for entry in range(output.shape[0])]
    return output, states[torch.tensor(last, device=states.device)]


def _packed(run: Callable[..., Any]) -> Callable[..., Any]:
    """Returns `run` for packed sequences: in one call where a kernel takes cu_seqlens, else one by one."""

    def packed(*given: Any, cu_seqlens: Tensor, **states: Any) -> Any:
        try:
            return run(*given, cu_seqlens=cu_seqlens, **states)
        except ValueError as error:  # before anything is computed, where there is no kernel
            if "packed sequences" not in str(error):
                raise
        return one_by_one(run)(*given, cu_seqlens=cu_seqlens, **states)

    return packed


def _nodes_of(told: Nodes | Sharding) -> Nodes:
    return told.nodes() if isinstance(told, Sharding) else told


def refuse_cache_over_ranks() -> NoReturn:
    """Raises for a cache where tokens are spread over ranks."""
    raise ValueError(
        "a cache came to a model with layers that carry a state, whose tokens are spread over ranks: no rank has the "
        "states behind them; train with use_cache=False, and generate on one device, without a sharding"
    )


def refuse_past() -> None:
    """Raises for several documents behind a cache."""
    raise ValueError(
        "several documents, or sequences with a shared prefix, came to layers with a state behind a cache that holds "
        "tokens already; give them to the model without a cache"
    )


_Make = Callable[[Callable[..., Any]], Callable[..., Any]]
_RULE = {"query", "key", "value", "g", "beta", "initial_state", "output_final_state"}
_SCAN = {"hidden_states", "dt", "A", "B", "C", "D"}
#: What is wrapped, by its name in a model's module, and the parameters that the wrapper counts on.
_SERVED: dict[str, tuple[_Make, set[str]]] = {
    "causal_conv1d_fn": (_convolution, {"hidden_states", "weight", "bias", "activation"}),
    "torch_chunk_gated_delta_rule": (_delta_rule, _RULE),
    "chunk_kimi_delta_attention": (_delta_rule, _RULE),
    "mamba2_chunk_scan": (_chunk_scan, {*_SCAN, "chunk_size", "dt_bias", "initial_states", "return_final_states"}),
    "mamba2_split_conv1d_scan_combined": (_nothing, set()),
    "mamba_selective_scan": (_selective_scan, {*_SCAN, "z", "delta_bias", "return_last_state"}),
    "mamba_inner_fn": (_nothing, set()),
}
