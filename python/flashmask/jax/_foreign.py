# SPDX-License-Identifier: Apache-2.0
"""The calls of the library that XLA makes: its foreign functions."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flashmask._abi.library import library
from flashmask._abi.problem import DTYPES, Problem
from flashmask.jax._site import READS, Arrays, Options, Site
from flashmask.jax._versions import result_like

MULTIPLE = 8
"""Head dims that kernels for GPUs take are multiples of it."""
_OPTIONAL = (
    *("mask", "sinks", "alibi_slopes", "query_positions", "key_positions", "bias"),
    *(*READS, "plan", "grad_lse"),
)


def register() -> None:
    """Tells XLA where the handlers are."""
    on_rocm = jax.ffi.pycapsule(library.flashmask_jax_refuse_rocm)
    for name in ("forward", "backward", "plan", "linear_forward", "linear_backward"):
        of_cpu, of_cuda = (getattr(library, f"flashmask_jax_{name}_{platform}") for platform in ("cpu", "cuda"))
        kind = "linear_" * name.startswith("linear_")
        on_cuda = jax.ffi.pycapsule(getattr(library, f"flashmask_jax_{kind}instantiate_cuda"))
        register = functools.partial(jax.ffi.register_ffi_target, f"flashmask_{name}")
        register({"execute": jax.ffi.pycapsule(of_cpu)}, platform="cpu")
        register({"instantiate": on_cuda, "execute": jax.ffi.pycapsule(of_cuda)}, platform="CUDA")
        register({"instantiate": on_rocm, "execute": on_rocm}, platform="ROCM")


def foreign(site: Site, *arrays: Any) -> tuple[Any, ...]:
    """Calls the library. Returns o and lse, or the gradients of q, k, v, the sinks and the bias, if there are some."""
    given = site.given(arrays)
    dims = given["q"].shape[3], given["v"].shape[3]
    if all(dim % MULTIPLE == 0 for dim in dims):
        return _foreign(site, *arrays)
    return tuple(jax.lax.platform_dependent(*arrays, cpu=_of(site, _foreign), default=_of(site, _padded)))


def _of(site: Site, function: Any) -> Any:
    return lambda *arrays: function(site, *arrays)


def _padded(site: Site, *arrays: Any) -> tuple[Any, ...]:
    """Pads head dims with zeros, which changes no score, and cuts the results."""
    given = site.given(arrays)
    dim = given["q"].shape[3]
    scale = site.options.scale or float(dim) ** -0.5
    site = site._replace(options=site.options._replace(scale=scale))
    results = _foreign(site, *(_padded_array(array, site.axes(name, array.ndim)) for name, array in given.items()))
    dims = {"q": dim, "k": dim, "v": given["v"].shape[3], "o": given["v"].shape[3]}
    return tuple(
        result[..., : dims[name]] if name in dims else result
        for name, result in zip(site.results, results, strict=True)
    )


def _padded_array(array: Any, axes: str) -> Any:
    if "t" not in axes or axes[-1] != "-":
        return array
    return jnp.pad(array, [(0, 0)] * 3 + [(0, -array.shape[3] % MULTIPLE)])


def _foreign(site: Site, *arrays: Any) -> tuple[Any, ...]:
    given, options = site.given(arrays), site.options
    call = jax.ffi.ffi_call(site.target, _results(site, arrays))
    integers = {
        "dtype": DTYPES.index(str(given["q"].dtype)),
        "has_dropout_words": "words" in given,
    }
    integers |= {f"has_{name}": name in given for name in _OPTIONAL}
    integers |= {f"has_grad_{name}": name in site.wanted for name in ("sinks", "bias")}
    return tuple(call(*arrays, **_attributes(options, integers)))


def _attributes(options: Options, integers: dict[str, int]) -> dict[str, Any]:
    """What XLA hands to a handler beside arrays."""
    every = integers | {
        "causal": options.causal,
        "deterministic": options.deterministic,
        "distance_origin": options.distance_origin,
        "heads_first": options.heads_first,
        "invariant": options.invariant,
        "mask_name_high": options.mask_name[0],
        "mask_name_low": options.mask_name[1],
        "most_documents": options.most_documents,
    }
    others = {
        "scale": np.float64(options.scale),
        "dropout": np.float64(options.dropout),
        "change": options.change,
    }
    return others | {name: np.int64(value) for name, value in every.items()}


def foreign_plan(options: Options, problem: Problem, mask: Any, size: int) -> Any:
    """Makes a plan in memory of a GPU, uint8 [size]."""
    call = jax.ffi.ffi_call("flashmask_plan", result_like((size,), jnp.uint8, [mask]))
    sizes = {name: getattr(problem, name) for name in Problem._fields[:7]}
    return call(mask, **_attributes(options, {"dtype": problem.code, "has_mask": True, **sizes}))


def _results(site: Site, arrays: Arrays) -> list[Any]:
    given = site.given(arrays)
    if site.backward:
        return [result_like(given[name].shape, given[name].dtype, arrays) for name in site.results]
    q, v = given["q"], given["v"]
    lse = jnp.float64 if q.dtype == jnp.float64 else jnp.float32
    return [
        result_like((*q.shape[:3], v.shape[3]), q.dtype, arrays),
        result_like(site.sizes(arrays), lse, arrays),
    ]
