# SPDX-License-Identifier: Apache-2.0
"""A rank of test_distributed.py or test_cuda_distributed.py: runs all cases, each in a group of the size it says.

python distributed_worker.py <module of cases> <rank> <world> <folder to meet in, and for results> [part of a name]
"""

import faulthandler
import importlib
import json
import sys
import time
import traceback
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist


def main(module, rank, world, folder, only=""):
    import distributed_cases

    cases = importlib.import_module(module)
    on_gpus = "cuda" in module
    faulthandler.dump_traceback_later(480, exit=True)
    torch.set_num_threads(1)
    if on_gpus:
        torch.cuda.set_device(rank)
    dist.init_process_group(
        "nccl" if on_gpus else "gloo",
        init_method=f"file://{folder}/meeting",
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=60),
    )
    groups = {size: dist.new_group(list(range(size))) for size in sorted({case.ranks for case in cases.CASES})}
    if hasattr(cases, "groups_to_destroy"):
        cases.groups_to_destroy.append(dist.new_group([0, 1]))
    found = {}
    for case in cases.CASES:
        if rank < case.ranks and only in case.name:
            began = time.perf_counter()
            error, in_step = "", True
            try:
                case.run(groups[case.ranks], rank)
            except Exception as raised:
                error, in_step = traceback.format_exc(), isinstance(raised, distributed_cases.Wrong)
            found[case.name] = error, time.perf_counter() - began
            Path(folder, f"{rank}.json").write_text(json.dumps(found))
            if not in_step:  # the others may be anywhere
                rest()
                sys.exit(f"{case.name}: {error}")
    if getattr(cases, "END_TOGETHER", True):
        dist.barrier()
        dist.destroy_process_group()
    rest()


def rest():
    """Threads of Gloo whose group still lives, as FSDP holds one, must let go of their tensors before the interpreter
    ends, or they abort the process.
    """
    time.sleep(0.5)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
