# SPDX-License-Identifier: Apache-2.0
"""Starts the ranks of a test: of cases of a module, gathering what they found, or of a program."""

import json
import os
import subprocess
import sys
from pathlib import Path

SECONDS = 500  # of a machine that is busy with much else


def run_ranks(module, ranks, folder, **environment):
    """What each rank ended with, said, and found of each case: (exit codes, logs, failures)."""
    worker = Path(__file__).with_name("distributed_worker.py")
    logs = [folder / f"{rank}.log" for rank in range(ranks)]
    processes = []
    for rank, log in enumerate(logs):
        command = [sys.executable, str(worker), module, str(rank), str(ranks), str(folder)]
        given = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
        with log.open("w") as output:
            processes.append(subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=given))
    try:
        codes = [process.wait(SECONDS) for process in processes]
    finally:
        for process in processes:
            process.kill()
    failures = []
    for rank in range(ranks):
        found = folder / f"{rank}.json"
        cases = json.loads(found.read_text()) if found.exists() else {}
        failures += [f"rank {rank}, {name}:\n{error}" for name, (error, _) in cases.items() if error]
    return codes, [log.read_text() for log in logs], failures


def assert_cases_pass(module, ranks, folder, **environment):
    """Every case of a module passes on every rank, and the ranks end well."""
    codes, logs, failures = run_ranks(module, ranks, folder, **environment)
    assert not failures, "\n".join(failures)
    assert codes == [0] * ranks, "\n".join(logs)


def torchrun(program, *arguments, ranks, alone=False):
    """A program as its users start it; one rank is a process without torchrun, unless `alone`."""
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    launch = launch if ranks > 1 or alone else []
    command = [sys.executable, *launch, str(program), *map(str, arguments)]
    given = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, env=given, check=False)
