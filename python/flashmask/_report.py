# SPDX-License-Identifier: Apache-2.0
"""The report of a machine that anybody can send: kernels against the formula, promises to the bit, speed. Needs torch.

docs/machines.md describes the file.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

import flashmask
from flashmask import Mask, masks
from flashmask._check import Promise, Verdict, check_cudnn, check_kernels, check_promises
from flashmask._info import info, kernels

FORMAT = 1
_SIZES: dict[str, tuple[int, int, tuple[str, ...]]] = {
    "cpu": (2048, 4, ("float32", "bfloat16")),
    "cuda": (8192, 16, ("bfloat16",)),
}
"""Tokens, heads and dtypes that are timed; head dim 128."""
_SHORT = {"float32": "f32", "bfloat16": "bf16"}


def check(device: str | None) -> tuple[list[Verdict], list[Promise]]:
    """Checks the kernels and the promises of "cpu" or "cuda"; None: of all that are here."""
    verdicts: list[Verdict] = []
    promises: list[Promise] = []
    for each in devices(device):
        verdicts += check_kernels(each, lambda name, on=each: _say(f"{on}: {name}"))  # type: ignore[misc]
        promises += check_promises(each)
    if "cuda" in devices(device):
        verdicts += check_cudnn(_say)
    _say("")
    return verdicts, promises


def devices(device: str | None) -> list[str]:
    """Returns the devices to check: those for which this build and this machine have a kernel."""
    here = sorted({each["device"] for each in kernels() if each["runs"]})
    if device is None:
        return here
    if device not in here:
        raise ValueError(f"device is {device!r}, for which no kernel runs here; expected {' or '.join(here)}")
    return [device]


def report(verdicts: list[Verdict], promises: list[Promise], device: str | None) -> dict[str, Any]:
    """Times attention and returns everything that a report says; nothing in it is personal."""
    rows = [row for each in devices(device) for row in _speed(each)]
    return {
        "report": FORMAT,
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "flashmask": flashmask.__version__,
        "by": "python -m flashmask check",
        "machine": _machine(),
        "torch": torch.__version__,
        "kernels": [
            {
                "kernel": each.kernel,
                "cases": each.cases,
                "error_over_bound": round(each.worst, 3),
                "passes": each.passes,
            }
            for each in verdicts
        ],
        "promises": [each._asdict() for each in promises],
        "speed": rows,
        "passes": passes(verdicts, promises),
    }


def passes(verdicts: list[Verdict], promises: list[Promise]) -> bool:
    return all(each.passes for each in verdicts) and all(each.holds for each in promises)


def as_text(verdicts: list[Verdict], promises: list[Promise]) -> str:
    """Formats the verdicts, one kernel per line, and how many promises hold."""
    wide = max(len(each.kernel) for each in verdicts)
    lines = [f"{'kernel':{wide}}  cases  error ÷ bound"]
    for each in verdicts:
        said = ("passes" if each.passes else "MISSES") if each.cases else "serves none of the cases"
        lines.append(f"{each.kernel:{wide}}  {each.cases:5}  {each.worst:13.3f}  {said}  {each.where}")
    held = sum(each.holds for each in promises)
    lines += ["", f"{held} of {len(promises)} promises to the bit hold"]
    lines += [f"broken on {each.device}, {each.dtype}: {each.promise}" for each in promises if not each.holds]
    return "\n".join(lines)


def how_to_send(file: str) -> str:
    return (
        f"Nothing personal is in {file}; read it, then send it from a clone of the project:\n"
        f'  gh issue create --title "Report of a machine" --body-file {file}\n'
        "or paste it into an issue with this title."
    )


def check_writable(file: str) -> None:
    """Raises OSError where `file` cannot be written, so that a check does not run for nothing."""
    is_new = not os.path.exists(file)
    with open(file, "ab"):
        pass
    if is_new:
        os.remove(file)


def write(file: str, facts: dict[str, Any]) -> None:
    with open(file, "w", encoding="utf-8") as out:
        json.dump(facts, out, indent=1)
        out.write("\n")


def _machine() -> dict[str, Any]:
    gpus = []
    for index in range(torch.cuda.device_count()):
        facts = torch.cuda.get_device_properties(index)
        capability = f"{facts.major}.{facts.minor}"
        gpus.append(
            {"name": facts.name, "compute_capability": capability, "gigabytes": round(facts.total_memory / 1e9)}
        )
    return {
        "cpu": _processor(),
        "threads": torch.get_num_threads(),
        "instruction_sets": info()["instruction_sets"],
        "system": f"{platform.system()} {platform.machine()}",
        "gpus": gpus,
    }


def _processor() -> str:
    """Returns the processor's name as the system tells it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
            return next(named, "unknown")
    except OSError:
        return platform.processor() or "unknown"


def _speed(device: str) -> Iterator[dict[str, Any]]:
    tokens, heads, dtypes = _SIZES[device]
    documents = [tokens // 8] * 8
    ids = torch.arange(8).repeat_interleave(tokens // 8)
    same_document = (ids[:, None] == ids).tril().to(device)
    timed: dict[str, tuple[Mask, dict[str, Any]]] = {
        "causal": (masks.causal(tokens), {"is_causal": True}),
        "causal_document, 8 documents": (masks.causal_document(documents), {"attn_mask": same_document}),
    }
    for dtype in dtypes:
        for name, (mask, of_torch) in timed.items():
            _say(f"{device}: timing {name}")
            q, k, v, grad = (
                torch.randn(1, tokens, heads, 128, device=device, dtype=getattr(torch, dtype)) for _ in range(4)
            )
            leaves = [each.requires_grad_() for each in (q, k, v)]
            plan = flashmask.plan(mask, q, k, v)
            ours = _two_ways(lambda *qkv, plan=plan: flashmask.attention(*qkv, plan=plan), leaves, grad)
            turned = [each.detach().transpose(1, 2).contiguous().requires_grad_() for each in leaves]
            theirs = _two_ways(
                lambda *qkv, options=of_torch: scaled_dot_product_attention(*qkv, **options),
                turned,
                grad.transpose(1, 2).contiguous(),
            )
            for direction, here, there in zip(("forward", "backward"), ours, theirs, strict=True):
                yield {
                    "mask": name,
                    "device": device,
                    "dtype": _SHORT[dtype],
                    "direction": direction,
                    "tokens": tokens,
                    "heads": heads,
                    "head_dim": 128,
                    "kernel": plan.kernel(direction),  # type: ignore[arg-type]
                    "milliseconds": round(here, 3),
                    "pytorch_milliseconds": round(there, 3),
                }


def _two_ways(attend: Callable[..., Any], leaves: list[Any], grad: Any) -> tuple[float, float]:
    """Returns median milliseconds of the forward and of the backward."""
    on_gpu = leaves[0].is_cuda
    o = attend(*leaves)
    without_graph = [each.detach() for each in leaves]
    forward = _median(lambda: attend(*without_graph), on_gpu)
    return forward, _median(lambda: torch.autograd.grad(o, leaves, grad, retain_graph=True), on_gpu)


def _median(work: Callable[[], object], on_gpu: bool) -> float:
    """Returns the median over at least three calls, and more for a quarter of a second, after one that warms up; work
    that takes more than two seconds is called once."""
    first = _milliseconds(work, on_gpu)
    if first > 2000:
        return first
    times: list[float] = []
    while len(times) < 3 or sum(times) < 250:
        times.append(_milliseconds(work, on_gpu))
    return statistics.median(times)


def _milliseconds(work: Callable[[], object], on_gpu: bool) -> float:
    if on_gpu:
        torch.cuda.synchronize()
    begin = time.perf_counter()
    work()
    if on_gpu:
        torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - begin)


def _say(what: str) -> None:
    """Shows on a terminal what is being checked."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{what}", end="", file=sys.stderr, flush=True)
