# SPDX-License-Identifier: Apache-2.0
"""Which of Transformers' language models run on FlashMask, found out by trying: the table in docs/transformers.md.

    python docs/transformers_families.py          # tries every family and writes the table
    python docs/transformers_families.py llama    # says what it finds of the families that are named

A family is made tiny, in float32 on the CPU with random weights, once with attn_implementation="eager" and once with
"flashmask". Compared are logits, and the gradients of all weights, of a whole sequence, of one that is padded on the
left, and of four documents packed by position_ids, with a mask of padding and without, and as positions of images.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import CONFIG_MAPPING, AutoModel, AutoModelForCausalLM, PretrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.utils import logging

import flashmask.transformers
from flashmask.transformers._stateful import carriers_of

#: What reads text in models of text and images whose positions have several axes, and how many.
AXES = {
    **dict.fromkeys(("glm4v_text", "glm4v_moe_text", "glm_image_text", "glm_ocr_text"), 3),
    **dict.fromkeys(("qwen2_vl_text", "qwen2_5_vl_text", "qwen3_vl_text", "qwen3_vl_moe_text"), 3),
    **dict.fromkeys(("cosmos3_edge_text", "hy_v4_vl_text", "cohere_compass_text"), 3),
    **dict.fromkeys(("qwen3_5_text", "qwen3_5_moe_text", "qwen4_exp_text"), 3),
    "hunyuan_vl_text": 4,
}
FAMILIES = list(dict.fromkeys([*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, *AXES]))
PAGE = Path(__file__).parent / "transformers.md"
BEGIN, END = "<!-- written by docs/transformers_families.py -->\n", "<!-- end of what it writes -->\n"
LENGTHS = [7, 1, 12, 4]
TOLERANCE = 5e-5  # of logits and of gradients, against the largest or 1
MOST_PARAMETERS = 3_000_000

EQUAL = "Equal to eager, whole, padded and packed: logits and gradients"
LEAKS = "Equal to eager whole and padded. Packed, documents do not see each other, while under eager they do"
CARRIES = "Equal to eager. Packed, layers beside attention carry on from one document to the next, under eager too"
STATES = (
    "Equal to eager whole and padded. Packed, layers with a state begin anew with each document, as attention does, "
    "while under eager they carry on ([recurrent.md](recurrent.md))"
)
UNREACHED = "Equal to eager whole and padded. Packed documents are refused: it has layers with a state out of reach"
BY_LENGTHS = (
    "Equal to eager whole, padded on the right, and packed by `cu_seq_lens_q` with `position_ids` that go on. It "
    "chooses blocks of keys by position: positions that restart are refused"
)
TOWERS = "Reads more than text: text is read by its text model"
REFUSED = "Refused when it is made: "
LEFT_OUT = "Not tried: "
_LEFT_OUT = {
    **dict.fromkeys(("gemma4_assistant", "gemma4_unified_assistant"), "drafts with the keys of another model"),
    **dict.fromkeys(("musicgen", "musicgen_melody"), "Transformers does not make it from its own configuration"),
}

_SIZES = {
    64: "vocab_size vocab_size_per_layer_input unpadded_vocab_size",
    128: "max_position_embeddings n_positions n_ctx max_seq_len",
    32: "hidden_size d_model n_embd embedding_size emb_dim lru_width ple_embed_dim",
    48: """intermediate_size decoder_ffn_dim encoder_ffn_dim ffn_dim ffn_hidden_size intermediate_size_mlp
        dense_intermediate_size""",
    16: """moe_intermediate_size shared_expert_intermediate_size shared_experts_intermediate_size index_head_dim
        shared_intermediate_size expert_ffn_hidden_size moe_shared_expert_intermediate_size qk_head_dim index_n_heads
        rel_extent pronunciation_vocab_size shape_vocab_size""",
    8: """head_dim qk_rope_head_dim v_head_dim qk_nope_head_dim kv_lora_rank q_lora_rank linear_key_head_dim
        linear_value_head_dim linear_head_dim rotary_dim mamba_d_state mamba_n_heads mamba_d_head mamba_chunk_size
        chunk_size swa_head_dim attention_chunk_size hidden_size_per_layer_input laurel_rank router_hidden_size
        ssm_state_size mamba_head_dim pronunciation_embed_dim shape_embed_dim hc_lowrank""",
    5: "sliding_window sliding_window_size attention_window_size",
    4: """num_attention_heads n_head n_heads num_heads encoder_attention_heads decoder_attention_heads attention_heads
        n_routed_experts num_experts num_local_experts index_topk mamba_dt_rank swa_num_attention_heads linear_num_heads
        mamba_num_heads adapter_rank""",
    2: """num_hidden_layers n_layer n_layers num_layers encoder_layers decoder_layers num_key_value_heads num_kv_heads
        swa_num_key_value_heads linear_num_value_heads linear_num_key_heads num_experts_per_tok num_experts_per_token
        moe_topk moe_k top_k_experts zero_expert_num eos_token_id""",
    1: "n_group topk_group bos_token_id",
}
_NO_DROPOUT = (
    "attention_dropout resid_pdrop embd_pdrop attn_pdrop hidden_dropout_prob attention_probs_dropout_prob dropout "
    "activation_dropout layerdrop decoder_layerdrop"
)
_TINY: dict[str, int | float] = {
    "pad_token_id": 0,
    **{name: size for size, names in _SIZES.items() for name in names.split()},
    **dict.fromkeys(_NO_DROPOUT.split(), 0.0),
}
_KEEP_NONE = ("sliding_window", "pad_token_id", "q_lora_rank", "num_kv_heads")
_TEXT = {
    name: _TINY[name]
    for name in ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
} | {"vocab_size": 64, "max_position_embeddings": 128, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_TOWER = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "image_size": 28, "patch_size": 14}
_TOWER_OF_ONE = {**_TOWER, "num_hidden_layers": 1}
_MAMBA = {"mamba_dt_rank": 4, "attn_layer_offset": 1, "attn_layer_period": 2}
_ROPES = {kind: {"rope_type": "default", "rope_theta": 1e4} for kind in ("sliding_attention", "full_attention")}
_OF_IMAGES = "cosmos3_edge_text glm4v_text hy_v4_vl_text qwen2_vl_text qwen2_5_vl_text qwen3_vl_text qwen3_vl_moe_text"
_ENCODERS = (
    "bert bert-generation big_bird camembert data2vec-text electra ernie megatron-bert rembert roberta "
    "roberta-prelayernorm roc_bert roformer xlm-roberta xlm-roberta-xl"
)


def _rope_of_images(*sections: int) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": list(sections)}}


_OWN: dict[str, dict[str, Any]] = {
    **{encoder: {"is_decoder": True} for encoder in _ENCODERS.split()},
    **{name: _rope_of_images(1, 1, 2) for name in _OF_IMAGES.split()},
    "glm4v_moe_text": {"head_dim": 16, **_rope_of_images(1, 1, 2)},
    **{name: {"head_dim": 16, **_rope_of_images(2, 2, 4)} for name in ("glm_image_text", "glm_ocr_text")},
    "hunyuan_vl_text": _rope_of_images(1, 1, 1, 1),
    "bamba": {"attn_layer_indices": [1]},
    "blt": {
        "patcher_config": _TEXT,
        "encoder_config": {**_TEXT, "num_key_value_heads": 4, "hidden_size_global": 64},
        "decoder_config": {**_TEXT, "num_key_value_heads": 4, "hidden_size_global": 64},
        "global_config": {**_TEXT, "hidden_size": 64},
        "encoder_hash_byte_group_vocab": 64,
    },
    "cohere_compass_text": {"layer_types": list(_ROPES), "rope_parameters": _ROPES},
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "rope_theta": 1e4, "clip_qkv": 8.0},
        "ffn_config": {"ffn_hidden_size": 48, "moe_num_experts": 4, "moe_top_k": 2},
    },
    "dory": {"n_input_layers": 1, "n_output_layers": 1},
    "dots1": {"num_experts_per_tok": 2, "n_routed_experts": 4, "n_shared_experts": 1},
    "dots3_note_text": {
        "n_shared_experts": 1,
        **{f"swa_{name}": _TINY[name] for name in ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "v_head_dim")},
        **{"swa_num_attention_heads": 4, "swa_num_key_value_heads": 4, "swa_head_dim": 16},
    },
    "emu3": {
        "text_config": _TEXT,
        "vq_config": {"codebook_size": 16, "embed_dim": 8, "base_channels": 32, "channel_multiplier": [1]},
        "vocabulary_map": {"<image>": 5},
    },
    "falcon_h1": {"mamba_d_ssm": 64, "mamba_expand": 2},
    "gemma3n_text": {
        "num_hidden_layers": 4,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "num_kv_shared_layers": 2,
    },
    "git": {"vision_config": _TOWER_OF_ONE},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "attention_layers": ["global", "local"]},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"]},
    "jamba": {**_MAMBA, "expert_layer_period": 2, "expert_layer_offset": 1},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "mamba2": {"num_heads": 8, "expand": 2, "n_groups": 1, "state_size": 8},
    "minimax_m3_vl_text": {"layer_types": ["minimax_m3_sparse"] * 2, "index_block_size": 4, "index_topk_blocks": 2}
    | {"index_n_heads": 2, "index_local_blocks": 1},
    "mllama": {
        "text_config": {**_TEXT, "cross_attention_layers": [1], "rope_parameters": _ROPES["full_attention"]},
        "vision_config": {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_global_layers": 1}
        | {"image_size": 28, "patch_size": 14, "intermediate_layers_indices": [0], "vision_output_dim": 64},
    },
    "nemotron_h": {"layers_block_type": ["mamba", "attention"], "n_groups": 1},
    "phi4_multimodal": {
        "vision_config": {**_TOWER_OF_ONE, "crop_size": 28},
        "audio_config": {"hidden_size": 32, "intermediate_size": 48, "num_blocks": 1, "num_attention_heads": 4}
        | {"ext_pw_out_channel": 32, "nemo_conv_channels": 8, "input_size": 16},
    },
    "qwen4_exp_text": {"indexer_n_heads": 4, "indexer_kv_heads": 1, "indexer_head_dim": 8, "indexer_budget": 8}
    | {"indexer_compress_ratio": 2, "ple_embed_dim": 32, "ngram_vocab_size_base": 64, "split_ngram_parts": 1}
    | {"make_ngram_vocab_size_divisible_by": 8},
    "recurrent_gemma": {"num_hidden_layers": 3},
    "reformer": {
        "is_decoder": True,
        "axial_pos_embds_dim": (16, 16),
        "axial_pos_shape": (8, 16),
        "attn_layers": ["local", "lsh"],
    },
    "xlm": {"n_heads": 4, "n_words": 64},
    "xmod": {"is_decoder": True, "languages": ["en_XX"], "default_language": "en_XX"},
    "zamba": {
        "layers_block_type": ["mamba", "hybrid"] * 2,
        "num_hidden_layers": 4,
        "attention_head_dim": 16,
        "attention_hidden_size": 64,
    }
    | {"num_key_value_heads": 4},
    "zamba2": {"layers_block_type": ["mamba", "hybrid"] * 2, "num_hidden_layers": 4, "num_key_value_heads": 4}
    | {"n_mamba_heads": 8},
    "zaya": {"num_experts_per_tok": 1},
}
Found = tuple[Tensor, Tensor]


def configuration(family: str) -> PretrainedConfig:
    """Of a tiny model: known sizes that the family's own configuration has, and one layer of each kind."""
    kind = CONFIG_MAPPING[family]
    own = _OWN.get(family, {})
    usual = vars(kind())
    sizes = {
        name: size
        for name, size in _TINY.items()
        if name in usual and name not in kind.attribute_map and not (usual[name] is None and name in _KEEP_NONE)
    }
    if "kv_lora_rank" in sizes:
        sizes["num_key_value_heads"] = sizes["num_attention_heads"]
    if usual.get("layer_types"):
        kinds = list(dict.fromkeys(usual["layer_types"]))
        kinds = kinds if len(kinds) > 1 else kinds * 2
        sizes |= {"layer_types": kinds, "num_hidden_layers": len(kinds)}
    return kind(**{**sizes, **own})


def make(family: str, implementation: str) -> torch.nn.Module:
    """The tiny model with random weights, the same for every implementation."""
    kind = AutoModelForCausalLM if family in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES else AutoModel
    with torch.device("meta"):
        shapes = kind.from_config(configuration(family), attn_implementation="eager")
    count = sum(each.numel() for each in shapes.parameters())
    if count > MOST_PARAMETERS:
        raise ValueError(f"{family} has {count} parameters; its configuration here leaves large sizes")
    model = kind.from_config(configuration(family), attn_implementation=implementation)
    torch.manual_seed(1)
    with torch.no_grad():
        for each in model.parameters():
            if each.ndim == 1 and bool((each == each[0]).all()) and bool(each[0]):  # factors, such as those of a norm
                each.mul_(1 + 0.1 * torch.randn_like(each))
            elif each.is_floating_point():
                each.copy_(torch.randn_like(each) * (0.15 if each.ndim > 1 else 0.3))
    return model.float().eval()


class Runs:
    """A tiny model of one implementation, and its logits and gradients in each situation."""

    def __init__(self, family: str, implementation: str) -> None:
        self.model = make(family, implementation)
        draw = torch.Generator().manual_seed(3)
        self.ids = torch.randint(3, 60, (1, sum(LENGTHS)), generator=draw)
        self.two = torch.randint(3, 60, (2, 14), generator=draw)
        self.positions = torch.cat([torch.arange(length) for length in LENGTHS])[None]

    def whole(self) -> Found:
        """One sequence."""
        return self._found(self._logits(self.ids))

    def padded(self, side: str = "left") -> Found:
        """Two sequences, the first with padding on that side."""
        real = torch.ones(2, 14, dtype=torch.long)
        real[0, slice(0, 5) if side == "left" else slice(9, 14)] = 0
        return self._found(self._logits(self.two, attention_mask=real) * real[..., None])

    def packed(self, axes: int = 0, **inputs: Any) -> Found:
        """Documents side by side, told by positions that restart, on that many axes if any."""
        positions = self.positions.expand(axes, *self.positions.shape) if axes else self.positions
        return self._found(self._logits(self.ids, position_ids=positions, **inputs))

    def packed_by_lengths(self) -> Found:
        """Documents told by their lengths, with positions that go on."""
        bounds = torch.tensor([0, *LENGTHS]).cumsum(0)
        lengths = {"cu_seq_lens_q": bounds, "cu_seq_lens_k": bounds}
        return self._found(self._logits(self.ids, position_ids=torch.arange(sum(LENGTHS))[None], **lengths))

    def alone(self) -> Found:
        """Each document by itself."""
        return self._found(torch.cat([self._logits(part) for part in self.ids.split(LENGTHS, 1)], 1))

    def under_numbers(self, positions: Tensor | None = None) -> Found:
        """Packed, with numbers to add to the scores that hide other documents; windows do not hold beside these."""
        document = torch.repeat_interleave(torch.arange(len(LENGTHS)), torch.tensor(LENGTHS))
        sees = (document[:, None] == document).tril()
        numbers = torch.zeros(sees.shape).masked_fill(~sees, torch.finfo(torch.float32).min)
        positions = self.positions if positions is None else positions
        return self._found(self._logits(self.ids, position_ids=positions, attention_mask=numbers[None, None]))

    def _logits(self, ids: Tensor, **inputs: Any) -> Tensor:
        output = self.model(input_ids=ids, use_cache=False, **inputs)
        logits: Tensor = output.logits if "logits" in output else output.last_hidden_state
        return logits

    def _found(self, logits: Tensor) -> Found:
        self.model.zero_grad()
        weights = torch.randn(logits.shape, generator=torch.Generator().manual_seed(5))
        (logits * weights).sum().backward()
        gradients = [each.grad.flatten() for each in self.model.parameters() if each.grad is not None]
        return logits.detach(), torch.cat(gradients)


def close(found: Found, expected: Found, tolerance: float = TOLERANCE) -> bool:
    """Whether logits and gradients agree but for rounding."""
    return all(
        a.shape == b.shape and float((a - b).abs().max()) <= tolerance * max(1.0, float(b.abs().max()))
        for a, b in zip(found, expected, strict=True)
    )


def verdict(family: str) -> str:
    """One of the sentences above, with its reason where it ends in a colon; AssertionError for any other outcome."""
    if family in _LEFT_OUT:
        return LEFT_OUT + _LEFT_OUT[family]
    text = text_model(family)
    if text:
        return TOWERS
    flashmask.transformers.register()
    level = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _tried(family)
    finally:
        logging.set_verbosity(level)


def text_model(family: str) -> str:
    """The family that reads text for one that reads more, "" where that is the family itself or none of the table."""
    config = CONFIG_MAPPING[family].sub_configs.get("text_config") if family not in _OWN else None
    name = getattr(config, "model_type", "")
    if config is not None and name not in FAMILIES:  # any model: the one that it has unless told another
        name = CONFIG_MAPPING[family]().text_config.model_type
    return name if name in FAMILIES else ""


def _tried(family: str) -> str:
    eager = Runs(family, "eager")
    try:
        ours = Runs(family, "flashmask")
    except ValueError as error:
        return _refusal(str(error))
    assert close(ours.whole(), eager.whole()), "a whole sequence differs"
    if getattr(ours.model.config, "index_block_size", None) is not None:
        return _tried_by_lengths(eager, ours)
    assert close(ours.padded(), eager.padded()), "a padded sequence differs"
    return _tried_packed(family, eager, ours)


def _refusal(message: str) -> str:
    reason = message.partition('with attn_implementation="flashmask": ')[2].partition("; use another")[0]
    assert reason or "flashmask" in message, message
    return REFUSED + (reason or "by Transformers, which takes the name for a FlashAttention's")


def _tried_packed(family: str, eager: Runs, ours: Runs) -> str:
    try:
        packed, alone = ours.packed(), ours.alone()
    except ValueError as error:
        said = ("does not reach its layers that carry a state", "none of its layers reads a mask")
        assert any(each in str(error) for each in said), error
        return UNREACHED
    for others in (
        {"attention_mask": torch.ones_like(ours.ids)},
        *({"axes": axes} for axes in (AXES.get(family), 4) if axes and family in AXES),
    ):
        assert close(ours.packed(**others), packed), f"packed documents differ with {list(others)}"
    if carriers_of(ours.model):
        # Recurrences with random weights amplify rounding: alone, olmo_hybrid is 1.2e-4 from float64.
        assert close(packed, alone, 4 * TOLERANCE), "packed documents differ"
        return STATES
    if close(packed, eager.packed()):
        return EQUAL if close(packed, alone) else CARRIES
    assert close(packed, alone) or close(packed, eager.under_numbers()), "packed documents differ"
    return LEAKS


def _tried_by_lengths(eager: Runs, ours: Runs) -> str:
    assert close(ours.padded("right"), eager.padded("right")), "a padded sequence differs"
    onwards = torch.arange(sum(LENGTHS))[None]
    assert close(ours.packed_by_lengths(), eager.under_numbers(onwards)), "packed documents differ"
    try:
        ours.packed()
    except ValueError:
        return BY_LENGTHS
    raise AssertionError("positions that restart were not refused")


def table(verdicts: dict[str, str]) -> str:
    """A row a verdict, those of most families first; refusals behind the others."""
    rows: dict[str, list[str]] = {}
    for family, said in verdicts.items():
        text = text_model(family) if said == TOWERS else ""
        rows.setdefault(said, []).append(f"`{family}`" + (f" ({text})" if text else ""))
    order = [EQUAL, LEAKS, STATES, CARRIES, UNREACHED, BY_LENGTHS, TOWERS]
    refused = sorted(
        (said for said in rows if said not in order), key=lambda said: (not said.startswith(REFUSED), said)
    )
    lines = [f"| {said} | {', '.join(rows[said])} |" for said in [each for each in order if each in rows] + refused]
    head = f"With Transformers {transformers.__version__}, {len(verdicts)} families:\n\n| what was found | families |\n"
    return head + "|---|---|\n" + "\n".join(lines) + "\n"


def read() -> tuple[str, dict[str, str]]:
    """The version and the verdicts that the page holds."""
    page = PAGE.read_text()
    written = page[page.index(BEGIN) + len(BEGIN) : page.index(END)]
    version = written.split("Transformers ")[1].split(",")[0]
    verdicts = {}
    for line in written.splitlines():
        if line.startswith("| ") and "`" in line:
            said, families = line.strip("| ").split(" | ")
            verdicts.update(dict.fromkeys((each.split("`")[1] for each in families.split(", ")), said))
    return version, verdicts


def main(families: list[str]) -> None:
    """Tries families, all of them where none is named, and then writes the table."""
    torch.set_num_threads(1)
    verdicts: dict[str, str] = {}
    failed: list[str] = []
    for family in families or FAMILIES:
        try:
            verdicts[family] = verdict(family)
        except (AssertionError, ValueError) as error:
            failed.append(family)
            print(f"{family}: FAILED, {error}", flush=True)
        else:
            print(f"{family}: {verdicts[family]}", flush=True)
    if failed:
        sys.exit(f"the table stays as it was: {', '.join(failed)} failed")
    if not families:
        page = PAGE.read_text()
        PAGE.write_text(page[: page.index(BEGIN) + len(BEGIN)] + table(verdicts) + page[page.index(END) :])


if __name__ == "__main__":
    main(sys.argv[1:])
