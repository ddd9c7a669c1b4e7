# SPDX-License-Identifier: Apache-2.0
"""ShardedBatches: Transformers' Trainer with sequences spread over the ranks of its context-parallel group."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from flashmask.transformers._shard import shard


class WithoutCpHooks:
    """A mixin for trainers that spread sequences over the ranks of Accelerate's context parallelism by themselves."""

    accelerator: Any

    def create_accelerator_and_postprocess(self) -> None:
        """Makes the accelerator, and leaves out its hooks for torch's context_parallel.

        They refuse layers with windows and with states, whose masks context_parallel would drop; a sharding has them.
        """
        super().create_accelerator_and_postprocess()  # type: ignore[misc]
        self.accelerator._prepare_cp = _unchanged


class ShardedBatches(WithoutCpHooks):
    """A mixin: class Trainer(flashmask.transformers.ShardedBatches, transformers.Trainer).

    Where Accelerate's ParallelismConfig(cp_size=...) asks for context parallelism, flashmask.transformers.shard()
    shares out batches with their masks, in place of torch's context_parallel, which supports causal masks only. The
    model needs attn_implementation="flashmask".
    """

    def _prepare_context_parallel_inputs(
        self, model: Any, inputs: dict[str, Any]
    ) -> tuple[Callable[[], Any], dict[str, Any]]:
        """Returns an empty context and this rank's part of the batch; Trainer calls this before each step."""
        mesh = context_parallel_mesh(self.accelerator)
        if mesh is None:
            return contextlib.nullcontext, inputs
        return contextlib.nullcontext, shard(self.accelerator.unwrap_model(model), inputs, mesh)


def _unchanged(*prepared: Any) -> tuple[Any, ...]:
    return prepared


def context_parallel_mesh(accelerator: Any) -> Any:
    """Returns the mesh of the ranks that share a batch if Accelerate was asked for context parallelism, else None."""
    parallelism = getattr(accelerator, "parallelism_config", None)
    return accelerator.torch_device_mesh["cp"] if parallelism is not None and parallelism.cp_enabled else None
