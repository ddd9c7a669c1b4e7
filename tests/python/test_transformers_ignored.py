# SPDX-License-Identifier: Apache-2.0
"""Row indices at other attention implementations of Transformers, which would ignore them."""

import subprocess
import sys

import pytest

pytest.importorskip("transformers", reason="the attention implementations are its")

torch = pytest.importorskip("torch", reason="Transformers runs on torch")

from training_models import batch, tiny  # noqa: E402
from transformers import AttentionInterface  # noqa: E402

import flashmask.transformers  # noqa: E402
from flashmask.data import pack, pack_rollouts  # noqa: E402

PAIRS = [{"prompt_ids": [5, 6, 7], "chosen_ids": [8, 9], "rejected_ids": [10, 11, 12]}]
NAMES = ("input_ids", "position_ids", "startend_row_indices")


def inputs():
    packed = pack(PAIRS, length=16)
    return {name: packed[name] for name in NAMES}


@pytest.mark.parametrize("implementation", ["sdpa", "eager", "flex_attention"])
def test_a_model_refuses_them(implementation):
    model = tiny(attn_implementation=implementation)
    sentence = f"startend_row_indices came to attn_implementation='{implementation}', which would ignore this mask"
    tree = pack_rollouts([[5, 6, 7], [5, 6, 8]])
    with torch.compiler.set_stance("force_eager"):  # FlexAttention would compile the mask that it makes first
        with pytest.raises(ValueError, match=sentence):
            model(**inputs())
        with pytest.raises(ValueError, match=sentence):
            model(**{name: tree[name] for name in NAMES})


@pytest.mark.parametrize("implementation", ["flash_attention_2", "flash_attention_3", "flash_attention_4"])
def test_flash_attention_refuses_them(implementation):
    """Without its package, which loads when a model is made."""
    if implementation not in AttentionInterface():
        pytest.skip(f"this Transformers has no {implementation}")
    attend = AttentionInterface().get_interface(implementation, None)
    q = torch.zeros(1, 4, 16, 16)
    for name in ("startend_row_indices", "attn_mask_startend_row_indices"):
        with pytest.raises(ValueError, match=f"{name} came to attn_implementation='{implementation}'"):
            attend(torch.nn.Module(), q, q, q, None, **{name: inputs()["startend_row_indices"]})


def test_flashmask_reads_them_and_the_others_go_on_without():
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    assert torch.isfinite(tiny()(**inputs()).logits).all()
    flashmask.transformers.register()  # a second time
    model = tiny(attn_implementation="sdpa")
    given = batch()
    logits = model(**given, use_cache=False).logits
    torch.testing.assert_close(logits, tiny()(**given, use_cache=False).logits, atol=1e-5, rtol=1e-5)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(**given, use_cache=False).logits, logits, atol=1e-5, rtol=1e-5)
    images = torch.randn(1, 2, 9, 8)  # of a tower whose keys are not those of the row indices
    attend = AttentionInterface().get_interface("sdpa", None)
    out, _ = attend(torch.nn.Module(), images, images, images, None, is_causal=False, **inputs())
    plain, _ = sdpa_attention_forward(torch.nn.Module(), images, images, images, None, is_causal=False)
    assert torch.equal(out, plain)


def test_attention_of_others_is_left_alone():
    def attend(module, query, key, value, attention_mask, startend_row_indices=None, **options):
        return startend_row_indices, None

    AttentionInterface.register("somebody-elses", attend)
    try:
        assert AttentionInterface().get_interface("somebody-elses", None) is attend
    finally:
        del AttentionInterface._global_mapping["somebody-elses"]


@pytest.mark.parametrize(
    ("imported", "warned"), [("transformers", 1), ("flashmask.transformers.auto", 0), ("torch", 0)]
)
def test_packing_warns_where_nothing_was_registered(imported, warned):
    program = f"""import {imported}
from flashmask.data import pack, pack_rollouts
for _ in range(2):
    pack({PAIRS}, length=16)
    pack([{{"input_ids": [1, 2]}}], length=16)
for _ in range(2):
    pack_rollouts([[5, 6, 7], [5, 6, 8]])"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stderr.count("call flashmask.transformers.register()") == 2 * warned
