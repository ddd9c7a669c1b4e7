# SPDX-License-Identifier: Apache-2.0
"""bench/compare.py: what its contestants are given, and what its report makes of numbers. Timing is not tested."""

import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).parent.parent.parent / "bench"))

from comparison import contestants, masks  # noqa: E402
from comparison.contestants import CONTESTANTS, Absent, of_documents  # noqa: E402
from comparison.data import Documents, alpaca, sample  # noqa: E402
from comparison.plots import draw, teraflops  # noqa: E402
from comparison.report import BOTH, of_twelve, text  # noqa: E402
from comparison.results import Measured, Results, RowResult  # noqa: E402
from comparison.workloads import LENGTHS, all_workloads, among, chosen  # noqa: E402

TOKENS = 256
PARAMETERS = {"kept_blocks": 2, "butterfly": 2, "equal_documents": 64, "medusa": 4, "medusa_parent": 4}
RUN = {
    "date": "2026-11-21",
    "gpu": "a GPU",
    "multiprocessors": 100,
    "torch": "2",
    "cudnn": 9,
    "flashmask": "0.1.0",
    "command": "python",
    "matmul_tflops": {"burst": 1000.0, "sustained": 700.0},
}


@pytest.fixture
def small_sample(monkeypatch):
    documents = Documents([100, 60, 96], [20, 0, 96], [False, True, False])
    monkeypatch.setattr(masks, "sample", lambda tokens: documents)


@pytest.mark.parametrize("name", masks.MASKS)
@pytest.mark.usefixtures("small_sample")
def test_contestants_get_the_same_mask(name):
    case = masks.MASKS[name](masks.Setting(TOKENS, 2, 3, "cpu", PARAMETERS.get(name, 0)))
    dense = np.asarray(case.mask.to_dense())
    assert torch.equal(case.visible, torch.from_numpy(dense).reshape(case.visible.shape))
    assert case.visible_pairs == dense.sum()


def test_butterfly_keeps_one_score_in_so_many():
    for share in (2, 4, 8):
        case = masks.butterfly(masks.Setting(2048, 1, 1, "cpu", share))
        assert np.array_equal(case.visible.numpy(), np.asarray(case.mask.to_dense()).reshape(case.visible.shape))
        assert case.visible_pairs * share == 2048**2


def test_a_contestant_of_documents_gets_where_those_of_all_sequences_end():
    given = []
    case = masks.causal_documents([3, 5], "cpu")
    q = torch.arange(16.0).reshape(2, 8, 1, 1)
    run = of_documents(case, q, lambda flat, ends, longest: given.append((ends.tolist(), longest)) or flat[2])
    assert torch.equal(run(q, q, 2 * q), 2 * q)
    assert given == [([0, 3, 8, 11, 16], 5)]


@pytest.mark.parametrize("name", ["causal", "document", "sliding_window", "global_sliding_window", "qk_sparse"])
@pytest.mark.usefixtures("small_sample")
def test_ranges_of_rows_say_the_mask(name):
    case = masks.MASKS[name](masks.Setting(TOKENS, 2, 3, "cpu"))
    ends = case.row_ends[0]
    assert ends.shape[0] % 2 == 1 and ends.dtype is torch.int32
    keys = torch.arange(TOKENS)
    visible = keys < ends[0][:, None]
    for begin, end in zip(ends[1::2], ends[2::2], strict=True):
        visible |= (keys >= begin[:, None]) & (keys < end[:, None])
    assert torch.equal(visible, case.visible[0, 0])


class Package:
    """Stands for a package that is not installed: notes what its functions are called with, and gives q back."""

    def __init__(self):
        self.calls = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)

        def call(*arguments, **options):
            self.calls.append((name, arguments, options))
            return arguments[1] if name == "create_mask_plan" else (arguments[0], None)

        return call


@pytest.fixture
def packages(monkeypatch):
    """Stubs by name; those of other names are not there."""
    found = {}

    def import_module(name):
        if name not in found:
            raise ImportError(f"No module named {name!r}")
        return found[name]

    monkeypatch.setattr(contestants.importlib, "import_module", import_module)
    return found


PEERS = {
    "flash3": ("flash_attn_interface", "it is built from the folder hopper of FlashAttention's sources"),
    "xformers3": ("xformers.ops.fmha", "pip install xformers, the version that goes with this torch"),
    "flash4": ("flash_attn.cute", "pip install flash-attn-4"),
    "flex4": ("flash_attn.cute", "pip install flash-attn-4"),
    "cudnnflex": ("cudnn.flex_attention", "pip install 'nvidia-cudnn-frontend[cutedsl]>=1.32'"),
}


@pytest.mark.parametrize("name", PEERS)
@pytest.mark.usefixtures("packages")
def test_a_peer_that_is_missing_says_what_to_install(name):
    module, install = PEERS[name]
    q = torch.zeros(1, 8, 2, 4)
    with pytest.raises(Absent, match=re.escape(f"not installed: No module named '{module}'; {install}")):
        CONTESTANTS[name].prepare(masks.causal(masks.Setting(8, 1, 2, "cpu")), q, q)


@pytest.mark.parametrize("name", ["flash3", "flash4"])
def test_flash_attention_gets_documents_and_causality(name, packages):
    package = packages[PEERS[name][0]] = Package()
    q = torch.randn(2, 8, 1, 4)
    at = masks.Setting(8, 2, 1, "cpu")
    for case, causal in ((masks.causal(at), True), (masks.full(at), False)):
        assert torch.equal(CONTESTANTS[name].prepare(case, q, q)(q, q, q), q)
        assert package.calls.pop() == ("flash_attn_func", (q, q, q), {"causal": causal})
    for make, causal in ((masks.causal_documents, True), (masks.documents, False)):
        run = CONTESTANTS[name].prepare(make([3, 5], "cpu"), q, q)
        assert torch.equal(run(q, q, q), q)
        called, (flat, *_), options = package.calls.pop()
        assert called == "flash_attn_varlen_func" and flat.shape == (16, 1, 4) and options["causal"] is causal
        assert options["cu_seqlens_q"].tolist() == options["cu_seqlens_k"].tolist() == [0, 3, 8, 11, 16]
        assert options["max_seqlen_q"] == options["max_seqlen_k"] == 5


def test_cudnn_gets_ranges_of_every_sequence(packages):
    package = packages["cudnn.flex_attention"] = Package()
    q = torch.randn(2, 8, 1, 4)
    run = CONTESTANTS["cudnnflex"].prepare(masks.causal_documents([3, 5], "cpu"), q, q)
    _, (ends, *_), _ = package.calls.pop()
    assert ends.shape == (1, 3, 16) and ends.dtype is torch.int32 and ends.is_contiguous()
    assert ends[0, :, 4].tolist() == ends[0, :, 12].tolist() == [0, 3, 5]
    assert torch.equal(run(q, q, q), q)
    assert package.calls.pop()[0] == "flex_attn_func"
    with pytest.raises(Absent, match="the same for all heads"):
        CONTESTANTS["cudnnflex"].prepare(masks.random_eviction(masks.Setting(8, 2, 2, "cpu")), q, q)


def test_flex_attention_is_told_its_backend(packages, monkeypatch):
    packages["flash_attn.cute"] = Package()
    given = {}
    monkeypatch.setattr(contestants, "compiled_flex", lambda q, k, v, **options: given.update(options) or q)
    q = torch.randn(1, 2, 8, 4)
    full = masks.full(masks.Setting(8, 1, 2, "cpu"))
    CONTESTANTS["flex4"].prepare(full, q, q)(q, q, q)
    assert given["kernel_options"] == {"BACKEND": "FLASH"}
    given.clear()
    CONTESTANTS["flex"].prepare(full, q, q)(q, q, q)
    assert "kernel_options" not in given


class XFormers:
    """xformers.ops.fmha and its flash3, as far as the contestant asks."""

    FwOp, BwOp = "forward", "backward"

    def __init__(self):
        self.calls = []
        kind = type("Kind", (), {"from_seqlens": staticmethod(lambda lengths: lengths)})
        self.attn_bias = SimpleNamespace(
            LowerTriangularMask=lambda: "causal", BlockDiagonalCausalMask=kind, BlockDiagonalMask=kind
        )

    def memory_efficient_attention(self, q, k, v, bias, op):
        self.calls.append((q.shape, bias, op))
        return q


def test_xformers_gets_its_biases(packages):
    package = packages["xformers.ops.fmha"] = packages["xformers.ops.fmha.flash3"] = XFormers()
    q, by = torch.randn(2, 8, 1, 4), ("forward", "backward")
    prepare = CONTESTANTS["xformers3"].prepare
    at = masks.Setting(8, 2, 1, "cpu")
    for case, shape, bias in (
        (masks.causal(at), (2, 8, 1, 4), "causal"),
        (masks.full(at), (2, 8, 1, 4), None),
        (masks.documents([3, 5], "cpu"), (1, 16, 1, 4), [3, 5, 3, 5]),
    ):
        assert torch.equal(prepare(case, q, q)(q, q, q), q)
        assert package.calls.pop() == (shape, bias, by)
    with pytest.raises(Absent, match="as many key heads"):
        prepare(masks.causal(at), q.expand(2, 8, 2, 4), q)


def test_the_report_says_what_to_install_once_and_which_versions_ran():
    results = Results(None)
    for mask in ("causal", "full"):
        made = result(f"twelve/{mask}/8K", (2.0, 3.0), (2.5, 5.0))
        made.absent["flash4"] = "not installed: No module named 'flash_attn'; pip install flash-attn-4"
        made.run = RUN | {"peers": {"xformers": "0.0.34"}}
        results.add(made)
    shown = text(results)
    sentence = "- FlashAttention-4: not installed: No module named 'flash_attn'; pip install flash-attn-4\n"
    assert shown.count(sentence) == 1 and "xformers 0.0.34" in shown


def test_eviction_drops_one_key_a_row_from_the_middle_on():
    evicted_at = masks.evictions(TOKENS, 2, seed=1)
    for head in evicted_at:
        assert sorted(row for row in head if row < TOKENS) == list(range(TOKENS // 2, TOKENS))
        assert all(row >= key for key, row in enumerate(head))


@pytest.mark.parametrize("tokens", LENGTHS)
def test_samples_and_packings_fill_a_sequence(tokens):
    assert sum(sample(tokens).lengths) == sum(alpaca(tokens).lengths) == tokens


def test_rows_are_named_once_and_found_by_table_and_pattern():
    ids = [workload.id for workload in all_workloads()]
    assert len(set(ids)) == len(ids)
    assert {workload.table for workload in chosen(["d64", "twelve/*/8K"])} == {"d64", "twelve"}
    with pytest.raises(ValueError, match="no row fits 'nonsense'"):
        chosen(["nonsense"])
    (packed,) = chosen(["packed/alpaca/128K"])
    assert among(packed, ["varlen", "ours", "cudnn"]).contestants == ("ours", "varlen")
    assert among(packed, []) == packed


def result(row, burst, sustained, active_tiles=0, direction="forward"):
    made = RowResult(row, direction, flops=1e12, active_tiles=active_tiles, row_tiles=1000, run=RUN)
    for name, cold, warm in zip(("ours", "flex"), burst, sustained, strict=False):
        made.measured[name] = Measured(cold, warm, prepare_ms=0.1, mask_bytes=1000, extra_bytes=0)
    return made


def test_report_says_ratios_rates_and_means(tmp_path):
    results = Results(tmp_path / "results.json")
    results.add(result("twelve/causal/8K", (2.0, 3.0), (2.5, 5.0)))
    results.add(result("twelve/document/8K", (1.0, 6.0), (1.0, 8.0)))
    shown = text(Results(tmp_path / "results.json"))
    assert "| causal/8K | 2.000 / 2.500 | 500 / 400 | 50 / 57 | 1.50 / 2.00 |" in shown
    assert "| 8K | forward | 2 | 3.00 / 4.00 | causal: 2.00 |" in shown


def test_report_adds_both_directions():
    results = Results(None)
    results.add(result("twelve/causal/8K", (2.0, 3.0), (2.5, 5.0)))
    results.add(result("twelve/causal/8K", (4.0, 6.0), (7.5, 25.0), direction="backward"))
    shown = text(results)
    assert "| twelve/causal/8K | 6.000 / 10.000 | 1.50 / 3.00 |" in shown
    assert "| 8K | forward and backward | 1 | 1.50 / 3.00 | causal: 3.00 |" in shown


def test_twelve_masks_are_drawn_once_all_were_measured(tmp_path):
    pytest.importorskip("matplotlib")
    results = Results(None)
    for mask in masks.TWELVE:
        assert draw(results, tmp_path) == []
        results.add(result(f"twelve/{mask}/8K", (1.0, 1.0), (2.0, 5.0)))
        results.add(result(f"twelve/{mask}/8K", (1.0, 1.0), (3.0, 5.0), direction="backward"))
    rows = of_twelve(results, 8192, BOTH)["causal"]
    assert [teraflops(rows, name) for name in ("ours", "flex", "cudnn")] == [
        pytest.approx(400),
        pytest.approx(200),
        None,
    ]
    assert draw(results, tmp_path) == [tmp_path / "masks.png"]


def test_what_the_gpu_takes_of_preparing_is_shown_where_it_is_known(tmp_path):
    path = tmp_path / "results.json"
    before, now = result("twelve/causal/8K", (2.0,), (2.5,)), result("twelve/document/8K", (1.0,), (1.0,))
    now.measured["ours"].prepare_gpu_ms = 0.0123
    results = Results(path)
    results.add(before)
    results.add(now)
    stored = json.loads(path.read_text())
    del stored["rows"][0]["measured"]["ours"]["prepare_gpu_ms"]
    path.write_text(json.dumps(stored))
    assert Results(path).rows == {row.key: row for row in (before, now)}
    shown = text(Results(path))
    assert "| 0.10 |  | 1 KB | 0 B |" in shown
    assert "| 0.10 | 0.012 | 1 KB | 0 B |" in shown


def test_report_fits_a_straight_line():
    results = Results(None)
    for share in (1, 4, 64):
        tiles = 6400 // share
        milliseconds = 1e-5 * tiles + 0.01
        results.add(
            result(f"blocks/kept_blocks/32K/1 in {share}", (milliseconds,), (milliseconds,), active_tiles=tiles)
        )
    assert "10.00 ns a tile, largest deviation 0.0 %, intercept 10 µs, which is 1980 cycles a row tile" in text(results)
