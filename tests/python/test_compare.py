"""bench/compare.py: what its contestants are given, and what its report makes of numbers. Timing is not tested."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).parent.parent.parent / "bench"))

from comparison import masks  # noqa: E402
from comparison.contestants import of_documents  # noqa: E402
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
