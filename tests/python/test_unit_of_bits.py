# SPDX-License-Identifier: Apache-2.0
"""The unit in which prompts are shared and answers padded, by the tiles of attention."""

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="models run on torch")
transformers = pytest.importorskip("transformers", reason="the unit is of its models")

from flashmask.transformers import _shared_prefix  # noqa: E402

CPU = torch.device("cpu")


def model(**config):
    made = {"hidden_size": 128, "intermediate_size": 32, "num_hidden_layers": 1, "vocab_size": 8, **config}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**made))


@pytest.mark.parametrize("heads", [1, 2, 16])
def test_tiles_of_a_cpu_make_up_units_of_128(heads):
    assert _shared_prefix.unit_of_bits(model(num_attention_heads=heads), CPU) == 128


@pytest.mark.parametrize(("tile", "unit"), [((64, 64), 128), ((128, 128), 128), ((192, 96), 192), ((128, 96), 384)])
def test_whole_tiles_make_up_a_unit_on_both_sides(tile, unit, monkeypatch):
    asked = []

    def plan(mask, q, k, v, **options):
        asked.append((q.shape[-1], q.dtype, options))
        return SimpleNamespace(explain=lambda: SimpleNamespace(tile_rows=tile[0], tile_columns=tile[1]))

    monkeypatch.setattr(_shared_prefix, "plan", plan)
    assert _shared_prefix.unit_of_bits(model(num_attention_heads=4).bfloat16(), CPU) == unit
    assert asked == [(32, torch.bfloat16, {"invariant": True})]
