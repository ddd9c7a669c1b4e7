# SPDX-License-Identifier: Apache-2.0
"""Writes the table of docs/machines.md from the reports in docs/machines/: python docs/machines_table.py

A report is a file that `python -m flashmask check --report FILE` wrote, named <date>-<machine>.json. Its sender goes in
as "sender".
"""

import json
from pathlib import Path

PAGE = Path(__file__).parent / "machines.md"
REPORTS = Path(__file__).parent / "machines"
BEGIN, END = "<!-- table -->\n", "<!-- end of the table -->\n"
HEAD = "| date | sender | machine | kernels | promises | speed |\n|---|---|---|---|---|---|\n"


def row(report):
    """One line of the table."""
    machine = report["machine"]
    name = ", ".join(gpu["name"] for gpu in machine["gpus"]) or f"{machine['cpu']}, {machine['threads']} threads"
    served = [each for each in report["kernels"] if each["cases"]]
    passed, kept = (
        sum(each[key] for each in rows) for rows, key in ((served, "passes"), (report["promises"], "holds"))
    )
    cells = (
        report["date"],
        report.get("sender", ""),
        f"{name}; flashmask {report['flashmask']}" + (f", PyTorch {report['torch']}" if report["torch"] else ""),
        f"{passed} of {len(served)} pass",
        f"{kept} of {len(report['promises'])} hold",
        "<br>".join(speed(each) for each in report["speed"] if each["direction"] == "forward"),
    )
    return f"| {' | '.join(cells)} |\n"


def speed(timed):
    """A forward, and how many times as long PyTorch's SDPA takes."""
    said = f"{timed['mask']}, {timed['dtype']} on {timed['device']}: {timed['milliseconds']:.1f} ms"
    theirs = timed["pytorch_milliseconds"]
    return said if theirs is None else f"{said} (SDPA {theirs / timed['milliseconds']:.1f} times)"


def table():
    """All rows, newest first."""
    files = sorted(REPORTS.glob("*.json"), reverse=True)
    return HEAD + "".join(row(json.loads(file.read_text())) for file in files)


def page(text):
    """The page with the table in its place."""
    before, rest = text.split(BEGIN)
    return before + BEGIN + table() + END + rest.split(END)[1]


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
