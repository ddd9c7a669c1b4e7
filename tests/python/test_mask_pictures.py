# SPDX-License-Identifier: Apache-2.0
"""Pictures of masks and the command that draws them."""

import json
import subprocess
import sys

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib.colors import to_rgb

import flashmask
from flashmask import _plot, masks
from flashmask.__main__ import main

matplotlib.use("agg")


def colours(figure):
    """uint8 [rows, columns, 3] of the picture in a figure."""
    return figure.axes[0].images[0].get_array()


def painted(colour):
    return np.rint(np.array(to_rgb(colour)) * 255).astype(np.uint8)


def is_colour(picture, colour):
    """Booleans [rows, columns]."""
    return (picture == painted(colour)).all(axis=-1)


def test_a_small_mask_is_painted_score_by_score():
    mask = masks.causal_document([40, 27, 3], 75)
    figure = mask.plot(tile=(16, 16))
    picture = colours(figure)
    seen = mask.to_dense()[0, 0]
    np.testing.assert_array_equal(is_colour(picture, _plot.FULL) | is_colour(picture, _plot.PARTIAL), seen)
    for r in range(0, 75, 16):
        for c in range(0, 75, 16):
            part = seen[r : r + 16, c : c + 16]
            tile = picture[r : r + 16, c : c + 16]
            if part.all():
                assert is_colour(tile, _plot.FULL).all()
            elif part.any():
                assert is_colour(tile, _plot.PARTIAL)[part].all()
                assert is_colour(tile, _plot.HIDDEN)[~part].all()
            else:
                assert is_colour(tile, _plot.SKIPPED).all()
    axes = figure.axes[0]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("key", "query")
    told = mask.explain((16, 16))
    assert axes.get_title(loc="left") == (
        f"75 queries, 75 keys, 21.4 % visible\n{told.active_tiles} of 25 tiles of 16 x 16 active"
    )
    assert len(axes.collections) == 2, "tile boundaries both ways"


def test_a_large_mask_is_painted_block_by_block(monkeypatch):
    monkeypatch.setattr(flashmask.Mask, "to_dense", None)
    mask = masks.sliding_window(100_000, 100_000, 5_000)
    picture = colours(mask.plot())
    side = -(-100_000 // 1024)
    assert picture.shape == (-(-100_000 // side), -(-100_000 // side), 3)
    told = mask.explain((side, side))
    assert is_colour(picture, _plot.FULL).sum() == told.full_tiles
    assert is_colour(picture, _plot.PARTIAL).sum() == told.partial_tiles
    with pytest.raises(ValueError, match=r"tile is \(64, 64\), but a mask of 100,000 tokens"):
        mask.plot(tile=(64, 64))


def test_one_entry_and_head_is_painted():
    mask = masks.stack_heads([masks.full(8, 6), masks.causal(8, 6)])
    figure = mask.plot(head=1, tile=(2, 2), title="second")
    seen = is_colour(colours(figure), _plot.FULL) | is_colour(colours(figure), _plot.PARTIAL)
    np.testing.assert_array_equal(seen, mask.to_dense()[0, 1])
    assert figure.axes[0].get_title(loc="left") == "second"
    assert (
        mask.plot(head=1).axes[0].get_title(loc="left").startswith("batch entry 0, head 1: 8 queries, 6 keys, 43.8 %")
    )
    with pytest.raises(ValueError, match="head 2"):
        mask.plot(head=2)


def test_pictures_are_files(tmp_path):
    for name in ("mask.png", "mask.svg"):
        masks.causal(30, 20).plot(tmp_path / name)
        assert (tmp_path / name).stat().st_size > 1000
    masks.from_document_ids(torch.tensor([0, 0, 1])).plot(str(tmp_path / "rows.png"))
    assert (tmp_path / "rows.png").exists()


def test_a_mask_is_painted_into_given_axes():
    from matplotlib.figure import Figure

    axes = Figure().subplots(1, 2)
    figure = masks.causal(30, 20).plot(ax=axes[1])
    assert figure is axes[1].figure
    assert not axes[0].images
    assert len(axes[1].images) == 1


def test_a_picture_needs_scores_and_matplotlib(monkeypatch):
    with pytest.raises(ValueError, match=r"shape \[1, 1, 0, 5\]; expected at least one score"):
        masks.full(0, 5).plot()
    with pytest.raises(TypeError, match="title is int 3"):
        masks.full(5, 5).plot(title=3)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"flashmask\[plot\]"):
        masks.full(5, 5).plot()


def run(capsys, *arguments):
    """Exit status, output and errors of the command."""
    status = main(arguments)
    told = capsys.readouterr()
    return status, told.out, told.err


def test_the_command_draws_masks(capsys, tmp_path):
    mask = masks.causal_document([4, 3, 3])
    status, text, _ = run(capsys, "show", "causal_document", "4,3,3", "--tile", "4", "4")
    assert status == 0
    assert text == f"{mask.draw()}\n{mask.explain((4, 4))}\n"
    status, text, _ = run(capsys, "show", "shared_question", "[(4, [3, 3])]", "tokens=12")
    assert text.startswith(masks.shared_question([(4, [3, 3])], 12).draw())
    status, text, _ = run(capsys, "show", "tree", "[-1,0,0]", "[1,1,1]", "order=as_given", "--json")
    assert json.loads(text)["visible_pairs"] == 5
    picture = tmp_path / "mask.png"
    assert run(capsys, "show", "causal", "40", "40", "--plot", str(picture))[0] == 0
    assert picture.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nope"], "there is no mask 'nope'; there are bidirectional_spans"),
        (["from_dense", "[[1]]"], "there is no mask 'from_dense'"),
        (["causal"], "missing 1 required positional argument: 'rows'"),
        (["causal", "4", "b"], "columns is str 'b'; expected an integer"),
        (["causal", "4", "-4"], "columns is -4"),
    ],
)
def test_the_command_says_what_is_wrong(capsys, arguments, message):
    status, text, error = run(capsys, "show", "--", *arguments)
    assert (status, text) == (2, "")
    assert error.startswith("python -m flashmask: ")
    assert message in error


def test_the_command_tells_what_this_build_can_do():
    def told(*arguments):
        command = [sys.executable, "-m", "flashmask", "info", *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    facts = json.loads(told("--json"))
    assert facts["version"] == flashmask.__version__
    assert facts["torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert facts["instruction_sets"][-1] == "scalar"
    names = [kernel["name"] for kernel in facts["kernels"]]
    assert len(set(names)) == len(names) >= 12
    scalar = next(k for k in facts["kernels"] if k["name"] == "scalar.forward.f32.dany.m64n64.intervals")
    assert scalar == {
        "name": "scalar.forward.f32.dany.m64n64.intervals",
        "arch": "scalar",
        "direction": "forward",
        "dtype": "f32",
        "device": "cpu",
        "tile": [64, 64],
        "head_dim": 512,
        "value_dim": 512,
        "features": [
            *("dropout", "deterministic", "block_map", "sinks", "softcap", "alibi", "invariant"),
            *("bias", "distance_bias", "any_change", "max_scores", "functions"),
        ],
        "compute_capability": None,
        "predicate": "intervals",
        "runs": True,
        "why_not": "",
    }
    backward = next(k for k in facts["kernels"] if k["name"] == "scalar.backward.bf16.dany.m128n128.intervals")
    assert set(backward["features"]) == {*scalar["features"], "float32_key_gradients"} - {"max_scores"}
    text = told("--all")
    assert all(name in text for name in names)
    assert flashmask.__version__ in text
    groups = {(kernel["device"], kernel["direction"], kernel["dtype"]) for kernel in facts["kernels"]}
    overview = told().split("\n\n")[1].splitlines()
    assert {tuple(line.split()[:3]) for line in overview[1:]} == groups
    on_gpu = [kernel for kernel in facts["kernels"] if kernel["device"] == "cuda" and kernel["runs"]]
    running = {(kernel["direction"], kernel["dtype"]) for kernel in on_gpu}
    families = {(kernel["direction"], kernel["dtype"], kernel["arch"]) for kernel in on_gpu}  # a line each
    assert len(overview) == 1 + len(groups) - len(running) + len(families)
