# SPDX-License-Identifier: Apache-2.0
"""A step of training on long packed sequences, end to end: FlashMask beside what people use today.

    python bench/train_long.py --list
    python bench/train_long.py --row 'lora-8b-x4/64K/*' --out out/train_long.json
    python bench/train_long.py --row record/lora-8b/128K/flashmask --out out/train_long.json
    torchrun --nproc-per-node 2 bench/train_long.py --row record/lora-8b-sparsest-ranks2/2M/flashmask
    python bench/train_long.py --out out/train_long.json --tables --pictures docs

A row is a task, a model, a length and a contestant. Models are Llamas of Transformers with random weights, in bfloat16:
"8b" and "1b" have the sizes of Llama 3.1 8B and Llama 3.2 1B, and -x4 has four of the layers. SFT learns all weights;
LoRA, DPO and RM (reward models) learn PEFT's LoRA beside frozen ones. Samples are those of the FlashMask paper
(flashmask.data.synthetic): one from each of ten bins of sparsity, weighted, or above 64K the middle one; in tables
whose name ends in -alpaca, documents have the lengths of Alpaca's. All layers run through
flashmask.training.long_context, whichever contestant computes attention in them. A row first says what memory it will
take, and does not start if that is not free. Results gather in a JSON file from call to call.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib.metadata
import importlib.util
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from fnmatch import fnmatch
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from torch import Tensor
from training.batches import Batch, batch_of
from training.clock import Clock
from training.contestants import CONTESTANTS, Absent, Attend, Contestant
from training.drawn import SAMPLES
from training.memory import CHUNK, GIB, Need, TooLarge, host_peak, least, restart_host_peak
from training.models import Optimizer, fuse_with_liger, make_model
from training.pictures import pictures
from training.ranks import Ranks, is_first, started
from training.report import disagreements, tables
from training.results import Measured, Results, RowResult
from training.rows import K, Row, all_rows, tiny_rows
from training.shapes import hardware_flops, model_flops
from training.tasks import Learner
from training.texts import text_examples
from transformers import AttentionInterface, AttentionMaskInterface

import flashmask
from flashmask.data import synthetic
from flashmask.data.synthetic import Sample
from flashmask.training import LongContext, long_context
from flashmask.training._memory import free_on_card, free_on_host

ATTENTION = "timed"
"""The name under which Transformers' models find the contestant of the row."""


def chosen(rows: list[Row], patterns: list[str]) -> list[Row]:
    """Rows in the order of the patterns, each of which must match at least one."""
    found: list[Row] = []
    for pattern in patterns:
        fitting = [row for row in rows if fnmatch(row.name, pattern)]
        if not fitting:
            sys.exit(f"train_long.py: no row is named {pattern}; --list names them all")
        found += [row for row in fitting if row not in found]
    return found


# ---- attention of the row's contestant, timed ----


class TimedAttention:
    """The attention that Transformers' models call: the contestant, made ready for the current batch."""

    def __init__(self, clock: Clock, say: Callable[[str], None]) -> None:
        self.clock, self.say = clock, say
        self.attend: Attend | None = None
        self.begun: set[int] = set()
        """Layers whose forward ran in this step; they may run again for the backward."""
        AttentionInterface.register(ATTENTION, self)
        AttentionMaskInterface.register(ATTENTION, lambda *_, **__: None)  # contestants make their own masks

    def __call__(self, module: Any, q: Tensor, k: Tensor, v: Tensor, *_: Any, **__: Any) -> tuple[Tensor, None]:
        """Maps q [1, heads, N, head dim], k and v [1, kv heads, N, head dim] to o [1, N, heads, head dim]."""
        if self.attend is None:
            raise RuntimeError("the model runs before a batch was made ready")
        layer = f"layer {module.layer_idx + 1} of {module.config.num_hidden_layers}"
        if module.layer_idx not in self.begun:
            self.begun.add(module.layer_idx)
            self.say(f"{layer}, forward")
        heads = [each.transpose(1, 2) for each in (q, k, v)]
        return self.clock.both_ways(
            "attention", self.attend, *heads, behind=lambda: self.say(f"{layer}, backward")
        ), None


class Progress:
    """Prints a line for each layer of a record, at most one layer before the device gets there."""

    def __init__(self, row: Row, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._silent = not row.is_record
        self._begun = time.monotonic()
        self._last: Any = None

    def __call__(self, text: str) -> None:
        if self._silent:
            return
        if self._cuda:
            if self._last is not None:
                self._last.synchronize()
            self._last = torch.cuda.Event()
            self._last.record()
        say(f"  {time.monotonic() - self._begun:7.1f} s  {text}")


# ---- a row ----


class Prepared(NamedTuple):
    """The cost of a mask, and of attention under it in one layer, alone and called once."""

    mask_seconds: float
    mask_bytes: int
    forward_seconds: float
    backward_seconds: float


class Session:
    """A row's model on its device, ready for steps."""

    def __init__(self, row: Row, options: argparse.Namespace) -> None:
        self.row, self.device, self.card, self.ranks = row, options.device, options.card, options.ranks
        self.dtype = torch.bfloat16 if self.device.type == "cuda" else torch.float32
        self.contestant: Contestant = CONTESTANTS[row.contestant]
        self.clock = Clock(self.device)
        self.attention = TimedAttention(self.clock, Progress(row, self.device))
        self.tokens = self._most_tokens()
        """The most tokens that one device holds."""
        self.need = self._on_all_ranks(self._need)
        say(f"{row.name}: takes about {self.need}")
        torch.manual_seed(0)
        model = self._model(self.device)
        if options.fuse == "liger":
            fuse_with_liger(model)
        self.learner = Learner(model, row.task, self.clock)
        if self.ranks is not None:
            self.ranks.share(self.learner.base.model, self.need.keep)
        self.optimizer = Optimizer(model.parameters(), RATES[row.task])
        self.context = long_context(model, chunk=CHUNK, **self.need.options, compile=options.fuse == "compile")
        time_copies(self.context, self.clock)

    def _model(self, device: torch.device) -> Any:
        row = self.row
        return make_model(row.size, row.layers, row.task, ATTENTION, device, self.dtype)

    def _need(self) -> Need:
        """The memory that the row needs, computed from the model on the meta device."""
        row, extra = self.row, self.contestant.extra(self.row.size, self.tokens)
        if self.ranks is not None:
            extra += self.ranks.fetched(row.size, row.tokens, self.dtype.itemsize)
        on_host = free_on_host() // row.ranks
        on_card = free_on_card(self.device) if self.device.type == "cuda" else on_host
        if self.card:
            on_card = int(self.card * GIB)
        model = self._model(torch.device("meta"))
        return least(model, self.tokens, extra, on_card, on_host, hold=row.is_record, ranks=row.ranks)

    def _most_tokens(self) -> int:
        if self.ranks is not None:
            return max(max(self.ranks.sharding(sample, self.row.size).lengths) for sample, _ in self.samples())
        if self.contestant.repeats:
            return max(sample.repeated_tokens for sample, _ in self.samples())
        return self.row.tokens

    def _on_all_ranks(self, function: Callable[[], Any]) -> Any:
        return function() if self.ranks is None else self.ranks.agreed(function)

    def samples(self) -> list[tuple[Sample, int]]:
        """Samples, each with how many of 240 it stands for."""
        return SAMPLES[self.row.lengths](self.row.task, self.row.tokens, self.row.samples)

    def lock_host_memory(self) -> None:
        """Locks all host memory that the row will use before it starts: locking takes seconds, and may be refused."""
        memory, begun = self.context.host_memory, time.monotonic()
        size = self.tokens * self.row.size.hidden * self.dtype.itemsize
        held = self._on_all_ranks(lambda: [memory.take(size) for _ in range(self.need.offload)])
        for piece in held:
            memory.give_back(piece)
        if held:
            say(f"  {len(held) * size / GIB:.1f} GiB of the host locked in {time.monotonic() - begun:.1f} s")

    def batch(self, sample: Sample, examples: list[dict[str, Any]] | None = None) -> Batch:
        examples = examples or sample.examples(self.row.size.vocabulary)
        batch = batch_of(self.row.task, sample, examples, repeat=self.contestant.repeats, device=self.device)
        return batch if self.ranks is None else self.ranks.spread(batch, self.row.size)

    def ready(self, batch: Batch, q: Tensor | None = None, k: Tensor | None = None) -> Attend:
        """Makes the contestant's mask ready for steps over the batch, whose tensors are like q and k."""
        if q is None or k is None:
            q, k, _ = self._heads(batch)
        self.attention.attend = self.contestant.prepare(batch, q, k)
        return self.attention.attend

    def _heads(self, batch: Batch) -> list[Tensor]:
        """Random q, k and v of a layer."""
        size = self.row.size
        shapes = [(1, batch.tokens, n, size.head_dim) for n in (size.heads, size.kv_heads, size.kv_heads)]
        return [torch.randn(shape, device=self.device, dtype=self.dtype, requires_grad=True) for shape in shapes]

    def prepare(self, batch: Batch) -> Prepared:
        """Times ready() with a first call, then attention alone, to tell the one from the other."""
        self.attention.attend = None
        q, k, v = self._heads(batch)
        held, moments = self._allocated(), [self._seconds()]
        attend = self.ready(batch, q, k)
        attend(q, k, v)
        mask_bytes = self._allocated() - held
        moments.append(self._seconds())
        o = attend(q, k, v)
        moments.append(self._seconds())
        torch.autograd.grad(o, (q, k, v), torch.randn_like(o))
        moments.append(self._seconds())
        first, forward, backward = (after - before for before, after in pairwise(moments))
        return Prepared(max(0.0, first - forward), mask_bytes, forward, backward)

    def step(self, batch: Batch) -> tuple[float, float, float]:
        """Runs a step; returns its seconds, the loss, and the norm of the gradient."""
        self.clock.restart()
        self.attention.begun.clear()
        begun = self._seconds()
        loss = self.learner.loss(batch)
        loss.backward()
        norm = self.optimizer.gradient_norm()
        self.optimizer.step()
        return self._seconds() - begun, loss.item(), norm

    def _seconds(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    def _allocated(self) -> int:
        return torch.cuda.memory_allocated() if self.device.type == "cuda" else 0

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.attention.attend = None  # it holds the mask, and Transformers holds self.attention
        self.context.close()


RATES = {"sft": 2e-5, "lora": 2e-4, "dpo": 5e-5, "rm": 5e-5}
"""AdamW's learning rates."""


def time_copies(context: LongContext, clock: Clock) -> None:
    """Makes the clock time copies of inputs to the host and back, on their own stream."""
    own = context._copies._copying

    @contextlib.contextmanager
    def timed(tensor: Tensor) -> Iterator[Any]:
        with own(tensor) as copying, clock.of("copies"):
            yield copying

    context._copies._copying = timed


def measure(row: Row, options: argparse.Namespace, run: dict[str, Any]) -> RowResult:
    """Measures a row: one step that warms up, then steps over each sample."""
    with Session(row, options) as session:
        samples = session.samples()
        session.lock_host_memory()
        warm_up(session)
        restart_peaks(session.device)
        result = RowResult(row.name, asdict(row), run)
        for sample, weight in samples:
            result.measured.append(measure_sample(session, sample, weight))
        result.peak_card, result.peak_host = peaks(session)
        result.predicted_card, result.predicted_host = session.need.card, session.need.host
    return result


def warm_up(session: Session) -> None:
    """Runs a step of the row, or of 8K tokens where the row's own takes long: it compiles code and loads libraries."""
    row = session.row
    tokens = min(row.tokens, 8 * K) if row.is_long else row.tokens
    batch = session.batch(SAMPLES[row.lengths](row.task, tokens, 1)[0][0])
    session.prepare(batch)
    session.step(batch)


def measure_sample(session: Session, sample: Sample, weight: int) -> Measured:
    """Measures a sample by its fastest step, since disturbances only make a step longer; the loss is the first step's.
    Over several ranks: the time of the first rank, and the FLOP per rank."""
    row, contestant = session.row, session.contestant
    batch = session.batch(sample)
    prepared = session.prepare(batch)
    steps = []
    for _ in range(row.steps):
        seconds, loss, norm = session.step(batch)
        steps.append((seconds, session.clock.seconds(), session.clock.counts(), loss, norm))
    seconds, parts, counts, *_ = min(steps, key=lambda step: step[0])
    *_, loss, norm = steps[0]
    calls = counts["attention forward"] + 2.5 * counts["attention backward"]
    computed = row.size.attention_flops(contestant.pairs(batch)) * calls
    seen = row.size.attention_flops(sample.visible_pairs) * calls
    parts["loss"] = parts.pop("loss forward", 0.0) + parts.pop("loss backward", 0.0)
    parts["linear"] = seconds - sum(taken for name, taken in parts.items() if name != "copies")
    return Measured(
        documents=[list(each) for each in sample.documents],
        weight=weight,
        sparsity=sample.sparsity,
        seconds=seconds,
        parts=parts,
        loss=loss,
        gradient_norm=norm,
        model_flops=model_flops(row.size, row.layers, row.task, sample) / row.ranks,
        hardware_flops=hardware_flops(row.size, row.layers, row.task, sample, batch.of_all_ranks, computed) / row.ranks,
        attention_flops=seen / row.ranks,
        alone=counts["attention forward"] * prepared.forward_seconds
        + counts["attention backward"] * prepared.backward_seconds,
        mask_seconds=prepared.mask_seconds,
        mask_bytes=prepared.mask_bytes,
    )


def converge(row: Row, options: argparse.Namespace, run: dict[str, Any]) -> RowResult:
    """Records the loss of every step, over samples and texts that can be learned; this library runs algorithms that
    repeat to the bit."""
    torch.use_deterministic_algorithms(CONTESTANTS[row.contestant].repeats_bits)
    try:
        with Session(row, options) as session:
            result = RowResult(row.name, asdict(row), run)
            drawn = synthetic.samples(row.task, row.tokens, count=row.steps, seed=11)
            for number, sample in enumerate(drawn):
                batch = session.batch(sample, text_examples(sample, row.size.vocabulary, seed=number))
                session.ready(batch)
                result.losses.append(session.step(batch)[1])
                if (number + 1) % 20 == 0:
                    say(f"  step {number + 1}: {result.losses[-1]:.6f}")
            result.checksum = session.optimizer.checksum()
            result.peak_card, result.peak_host = peaks(session)
    finally:
        torch.use_deterministic_algorithms(False)
    return result


def restart_peaks(device: torch.device) -> None:
    restart_host_peak()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()


def peaks(session: Session) -> tuple[int, int]:
    """Peak bytes on the card, and of the whole process on the host."""
    card = torch.cuda.max_memory_allocated() if session.device.type == "cuda" else 0
    return card, host_peak()


# ---- the program ----


def say(text: str) -> None:
    if is_first():
        print(text, file=sys.stderr, flush=True)


def facts(options: argparse.Namespace) -> dict[str, Any]:
    cuda = options.device.type == "cuda"
    return {
        "date": time.strftime("%Y-%m-%d"),
        "device": torch.cuda.get_device_name() if cuda else "CPU",
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "flashmask": flashmask.__version__,
        "peers": installed_versions(),
        "command": "python bench/train_long.py " + shlex.join(sys.argv[1:]),
    }


def installed_versions() -> dict[str, str]:
    """The versions of the packages that contestants may run on."""
    found = {}
    for label, package in (("FlashAttention-3", "flash_attn_3"), ("FlashAttention-4", "flash-attn-4")):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[label] = importlib.metadata.version(package)
    return found


def expected_seconds(row: Row) -> float:
    """Rough seconds that a row takes on an H200, for --minutes."""
    contestant = CONTESTANTS[row.contestant]
    sample, _ = SAMPLES[row.lengths](row.task, row.tokens, 1)[0]
    pairs = row.tokens**2 if contestant.everywhere else sample.visible_pairs
    attention = row.layers * row.size.attention_flops(pairs) * 4.5 / contestant.rate
    linear = hardware_flops(row.size, row.layers, row.task, sample, row.tokens, 0.0) / 450e12
    times = row.steps if row.converges else row.samples * row.steps + (not row.is_long)
    return 5 + times * (attention + linear) / row.ranks


def measure_all(rows: list[Row], options: argparse.Namespace, results: Results) -> bool:
    """Measures rows and returns whether all went well. Names the rows for which there was no time."""
    run, deadline, passed = facts(options), time.monotonic() + 60 * options.minutes, True
    for place, row in enumerate(rows):
        if place and time.monotonic() + expected_seconds(row) > deadline:
            say(f"No time for: {' '.join(each.name for each in rows[place:])}")
            break
        begun = time.monotonic()
        try:
            result = converge(row, options, run) if row.converges else measure(row, options, run)
        except (Absent, TooLarge, MemoryError, torch.OutOfMemoryError) as error:
            if options.ranks is not None and not isinstance(error, TooLarge):
                sys.exit(f"{row.name}: rank {os.environ['RANK']}: {error}")  # torchrun then ends the other ranks
            result = RowResult(row.name, asdict(row), run, absent=str(error).strip().splitlines()[0])
            passed = passed and isinstance(error, Absent)
        if is_first():
            results.add(result)
        say(f"{result.line()}; {time.monotonic() - begun:.1f} s with all around it")
        gc.collect()
        if options.device.type == "cuda":
            torch.cuda.empty_cache()
    return passed


FUSE_HELP = "who joins the steps between products: Liger-kernel, or torch.compile (default: no one)"


def arguments(given: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="name all rows and stop")
    parser.add_argument("--row", nargs="+", default=[], metavar="NAME", help="rows to measure, or patterns of names")
    parser.add_argument("--out", type=Path, default=Path("out/train_long.json"), help="where results gather")
    parser.add_argument("--again", action="store_true", help="measure rows that the file has, too")
    parser.add_argument("--minutes", type=float, default=8, help="start no row that would end later (default: 8)")
    parser.add_argument("--samples", type=int, help="bins of sparsity to take samples of, 1 for the middle one of all")
    parser.add_argument("--steps", type=int, help="steps of each sample; of a row of convergence, in all")
    parser.add_argument("--fuse", choices=("no", "liger", "compile"), default="no", help=FUSE_HELP)
    parser.add_argument("--device", choices=("cuda", "cpu"), help="default: cuda where there is one, else cpu")
    parser.add_argument(
        "--card", type=float, metavar="GIB", help="of the card's memory to plan with (default: what is free)"
    )
    parser.add_argument("--tables", action="store_true", help="print the tables of the file")
    parser.add_argument("--pictures", type=Path, metavar="FOLDER", help="draw what the file has into this folder")
    parser.add_argument("--tiny", action="store_true", help="rows of tiny models, which take seconds on a CPU")
    options = parser.parse_args(given)
    if not (options.row or options.list or options.tables or options.pictures):
        parser.error("nothing is asked for; expected --row, --list, --tables or --pictures")
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device is cuda, but torch finds no GPU here; expected cpu, or a machine and a torch with CUDA")
    options.device = torch.device(options.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    options.ranks = None
    if options.fuse == "liger" and importlib.util.find_spec("liger_kernel") is None:
        parser.error("--fuse is liger, but Liger-kernel is not installed: pip install liger-kernel")
    if not (options.row or options.list or options.out.exists()):
        parser.error(f"{options.out} is not there; expected what rows were measured into, by --row and --out")
    for name in ("samples", "steps", "card"):
        if getattr(options, name) is not None and getattr(options, name) < 1:
            parser.error(f"--{name} is {getattr(options, name)}; expected at least 1")
    return options


def is_startable(row: Row) -> bool:
    """Whether as many ranks were started as the row needs; if not, says how to start them."""
    if row.ranks != started():
        say(
            f"{row.name}: takes {row.ranks} {'rank' if row.ranks == 1 else 'ranks'}, {started()} started; expected "
            f"torchrun --nproc-per-node {row.ranks} bench/train_long.py"
        )
    return row.ranks == started()


@contextlib.contextmanager
def joined_ranks(options: argparse.Namespace, rows: list[Row]) -> Iterator[None]:
    """Joins the processes that torchrun started, each with a device of its own."""
    if not rows or started() == 1:
        yield
        return
    if options.device.type == "cuda":
        options.device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(options.device)
    options.ranks = Ranks(options.device)
    try:
        yield
    finally:
        options.ranks.close()


def asked(row: Row, options: argparse.Namespace) -> Row:
    """The row with the samples and steps that were asked for."""
    return replace(row, samples=options.samples or row.samples, steps=options.steps or row.steps)


def main(given: list[str] | None = None) -> int:
    options = arguments(given)
    # Long rows allocate large pieces of many sizes, which would leave gaps that no other piece fits.
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    rows = tiny_rows() if options.tiny else all_rows()
    if options.list:
        print("\n".join(row.name for row in rows))
        return 0
    try:
        results = Results.load(options.out)
    except (ValueError, KeyError, TypeError) as error:
        sys.exit(f"train_long.py: {options.out} holds no results of this program ({error}); expected another --out")
    wanted = [asked(row, options) for row in chosen(rows, options.row)]
    startable = [row for row in wanted if is_startable(row)]
    passed, wanted = len(startable) == len(wanted), startable
    for row in () if options.again else [each for each in wanted if each.name in results.rows]:
        say(f"{row.name}: {options.out} has it; --again measures it anew")
        wanted.remove(row)
    if any(row.converges for row in wanted):  # before the first product, or GPU products would not repeat
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    try:
        with joined_ranks(options, wanted):
            passed = measure_all(wanted, options, results) and passed
    except KeyboardInterrupt:  # the row's session has released its memory
        say(f"Interrupted; rows that were done are in {options.out}")
        return 130
    if not is_first():
        return 0 if passed else 1
    if options.tables:
        print(tables(results))
    for broken in disagreements(results):
        say(f"BROKEN {broken}")
        passed = False
    if options.pictures:
        for path in pictures(results, options.pictures):
            say(f"drawn: {path}")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
