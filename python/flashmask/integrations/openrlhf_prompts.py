# SPDX-License-Identifier: Apache-2.0
"""OpenRLHF: a command in place of `python -m openrlhf.cli.train_ppo_ray`, with which each prompt is computed once.

    python -m flashmask.integrations.openrlhf_prompts --ds.attn_implementation flashmask ...

OpenRLHF computes in workers of Ray. Ray has each of them call before_workers(), which puts SharedPromptActor in place
of OpenRLHF's Actor as soon as a worker imports what trains or scores; workers of vLLM never import that.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import runpy
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

_WORKERS = ("openrlhf.trainer.ray.launcher", "openrlhf.trainer.ray.ppo_actor", "openrlhf.trainer.ray.ppo_critic")
_HOOK = "worker_process_setup_hook"  # of a runtime environment of Ray


class _ImportsBefore(importlib.abc.MetaPathFinder):
    """Finds nothing itself, and imports the Actor before the workers that take it by name."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname in _WORKERS:
            importlib.import_module("flashmask.integrations._openrlhf_actor")
        return None


def before_workers() -> None:
    """Has this process compute each prompt once, if it goes on to import OpenRLHF's workers."""
    sys.meta_path.insert(0, _ImportsBefore())


def with_hook(init: Callable[..., Any]) -> Callable[..., Any]:
    """Returns ray.init with an environment in which every worker calls before_workers()."""

    def hooked(*arguments: Any, runtime_env: dict[str, Any] | None = None, **options: Any) -> Any:
        given = runtime_env or {}
        if _HOOK in given:
            raise ValueError(f"runtime_env has a {_HOOK} already; call before_workers() of {__name__} in it")
        return init(*arguments, runtime_env={**given, _HOOK: f"{before_workers.__module__}.before_workers"}, **options)

    return hooked


def main() -> None:
    """Runs openrlhf.cli.train_ppo_ray with the arguments of this process."""
    before_workers()  # what this process sends to workers names the same classes
    ray: Any = importlib.import_module("ray")
    ray.init = with_hook(ray.init)
    runpy.run_module("openrlhf.cli.train_ppo_ray", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    from flashmask.integrations.openrlhf_prompts import main as run  # by the name that workers import it under

    run()
