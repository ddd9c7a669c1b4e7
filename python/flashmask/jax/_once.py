# SPDX-License-Identifier: Apache-2.0
"""once(): calls of the library as JAX compiles them, which cannot be differentiated a second time."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax


def once(name: str, call: Callable[..., tuple[Any, ...]]) -> Callable[..., tuple[Any, ...]]:
    """Returns `call`(site, *arrays) as a compiled function for each site, which is hashable; JAX is refused a gradient.

    A forward and its backward are such calls. `name`: the public function, for the error.
    """

    def refuse(site: Any, primals: Any, tangents: Any) -> Any:
        raise NotImplementedError(
            f"flashmask.jax.{name}: a gradient of a gradient was asked for, or a forward-mode derivative of a "
            f"gradient; {name} is differentiable once"
        )

    undifferentiated = jax.custom_jvp(call, nondiff_argnums=(0,))
    undifferentiated.defjvp(refuse)
    compiled: Callable[..., tuple[Any, ...]] = functools.partial(jax.jit, static_argnums=0)(
        lambda site, *arrays: tuple(undifferentiated(site, *arrays))
    )
    return compiled
