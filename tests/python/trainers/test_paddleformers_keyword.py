# SPDX-License-Identifier: Apache-2.0
"""Row indices under the keyword of PaddleFormers' models, so that its batches carry over."""

import pytest

torch = pytest.importorskip("torch", reason="Transformers runs on torch")
transformers = pytest.importorskip("transformers", reason="the keyword is one of its models' calls")

import flashmask.transformers.auto  # noqa: E402, F401
from flashmask.data import pack  # noqa: E402

PAIRS = [{"prompt_ids": [5, 6, 7], "chosen_ids": [8, 9], "rejected_ids": [10, 11, 12]}]


def test_both_names_mean_one_thing_and_exclude_each_other():
    sizes = {"vocab_size": 32, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2}
    config = transformers.LlamaConfig(**sizes, num_attention_heads=2, attn_implementation="flashmask")
    model = transformers.LlamaForCausalLM(config)
    batch = pack(PAIRS, length=16)
    inputs = {name: batch[name] for name in ("input_ids", "position_ids")}
    indices = batch["startend_row_indices"]
    logits = model(**inputs, attn_mask_startend_row_indices=indices).logits
    assert (logits == model(**inputs, startend_row_indices=indices).logits).all()
    assert not (logits == model(input_ids=inputs["input_ids"]).logits).all()
    with pytest.raises(ValueError, match="startend_row_indices and attn_mask_startend_row_indices are both given"):
        model(**inputs, startend_row_indices=indices, attn_mask_startend_row_indices=indices)
