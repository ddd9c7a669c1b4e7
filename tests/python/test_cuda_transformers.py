# SPDX-License-Identifier: Apache-2.0
"""Families of Transformers with the head dims of their real models on a GPU: packed, trained two steps in bfloat16.

Gradients are held against those of eager attention in float32, each document by itself.
"""

import warnings

import pytest

torch = pytest.importorskip("torch", reason="Transformers runs on torch")
transformers = pytest.importorskip("transformers", reason="tests its integration")

from cuda_device import needs_gpu  # noqa: E402

import flashmask  # noqa: E402
import flashmask.transformers  # noqa: E402
from flashmask.transformers._heads import is_wide  # noqa: E402

LENGTHS = [200, 1, 130, 309]
TOKENS = sum(LENGTHS)
COMMON = {
    "vocab_size": 256,
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "max_position_embeddings": 1024,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
# All experts are chosen for each token, because rounding would choose others.
MOE = {"num_experts_per_tok": 2, "num_local_experts": 2}
LATENT = {"q_lora_rank": 64, "kv_lora_rank": 64, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
FAMILIES = {
    "gpt_oss": COMMON
    | MOE
    | {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64, "sliding_window": 128},
    "gemma4_text": COMMON
    | {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 256, "global_head_dim": 512}
    | {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 64, "hidden_size_per_layer_input": 0},
    "llama4_text": COMMON
    | MOE
    | {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 128, "intermediate_size_mlp": 192}
    | {"attention_chunk_size": 96, "layer_types": ["chunked_attention", "full_attention"]},
    "minimax_m3_vl_text": COMMON
    | MOE
    | {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 128, "moe_intermediate_size": 64}
    | {"layer_types": ["minimax_m3_sparse"], "num_hidden_layers": 1, "index_n_heads": 2, "index_head_dim": 64}
    | {"index_block_size": 128, "index_topk_blocks": 2, "index_local_blocks": 1, "dense_intermediate_size": 192}
    | {"shared_intermediate_size": 64, "rotary_dim": 64},
    "deepseek_v32": COMMON
    | LATENT
    | {"num_attention_heads": 4, "num_key_value_heads": 4, "index_n_heads": 16, "index_head_dim": 128}
    | {"index_topk": 64, "first_k_dense_replace": 1, "num_hidden_layers": 1, "moe_intermediate_size": 64},
}
BY_LENGTHS = ["minimax_m3_vl_text"]  # chooses blocks by positions, which have to go on


def made(family, implementation, dtype):
    if family not in transformers.CONFIG_MAPPING:
        pytest.skip(f"Transformers {transformers.__version__} has no {family}")
    config = transformers.CONFIG_MAPPING[family](**FAMILIES[family])
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=implementation)
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, each in model.named_parameters():
            if each.ndim > 1:
                each.copy_(torch.randn(each.shape, generator=draw) * 0.06)
            elif family == "gemma4_text" and ("q_norm" in name or "k_norm" in name):
                each.fill_(0.2)  # scores are not divided by anything there, and would leave one key a query
    return model.to(torch.bfloat16).to("cuda", dtype).train()


IDS = torch.randint(3, 256, (1, TOKENS), generator=torch.Generator().manual_seed(1))


def packed(family):
    """Four documents in one sequence."""
    if family in BY_LENGTHS:
        bounds = torch.tensor([0, *LENGTHS], dtype=torch.int32).cumsum(0, dtype=torch.int32).cuda()
        lengths = {"cu_seq_lens_q": bounds, "cu_seq_lens_k": bounds}
        return {"input_ids": IDS.cuda(), "position_ids": torch.arange(TOKENS)[None].cuda(), **lengths}
    positions = torch.cat([torch.arange(length) for length in LENGTHS])[None]
    return {"input_ids": IDS.cuda(), "position_ids": positions.cuda()}


def alone(model, family):
    """Logits of each document by itself, or under a mask that hides the others where positions go on."""
    if family not in BY_LENGTHS:
        return torch.cat([model(part.cuda(), use_cache=False).logits for part in IDS.split(LENGTHS, 1)], 1)
    document = torch.repeat_interleave(torch.arange(len(LENGTHS)), torch.tensor(LENGTHS))
    sees = (document[:, None] == document).tril()[None, None].cuda()
    numbers = torch.zeros(sees.shape, dtype=model.dtype, device=sees.device).masked_fill(~sees, -1e30)
    return model(IDS.cuda(), attention_mask=numbers, use_cache=False).logits


def trained(family, implementation, dtype):
    """Two steps of plain descent: losses and gradients of each, float32."""
    model = made(family, implementation, dtype)
    labels = IDS[0].clone()
    labels[torch.tensor([0, *LENGTHS[:-1]]).cumsum(0)] = -100
    steps = []
    for _ in range(2):
        model.zero_grad()
        logits = alone(model, family) if implementation == "eager" else model(**packed(family)).logits
        loss = torch.nn.functional.cross_entropy(logits[0, :-1].float(), labels[1:].cuda())
        loss.backward()
        gradients = [each.grad.float().flatten() for each in model.parameters() if each.grad is not None]
        steps.append((float(loss.detach()), torch.cat(gradients)))
        with torch.no_grad():
            for each in model.parameters():
                if each.grad is not None:
                    each.sub_(0.05 * each.grad)
    return steps


@needs_gpu
@pytest.mark.parametrize("family", FAMILIES)
def test_packed_training_follows_documents_run_alone_in_float32(family):
    flashmask.transformers.register()
    exact, naive = trained(family, "eager", torch.float32), trained(family, "eager", torch.bfloat16)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = trained(family, "flashmask", torch.bfloat16)
    for (loss, gradient), (wanted, expected), (_, rounded) in zip(found, exact, naive, strict=True):
        off, bound = (float((each - expected).norm() / expected.norm()) for each in (gradient, rounded))
        print(
            f"{family}: loss {loss:.5f} for {wanted:.5f}, gradients off by {off:.5f}, eager's in bfloat16 {bound:.5f}"
        )
        assert abs(loss - wanted) < 0.02 * abs(wanted) and off <= 1.5 * bound + 0.005
    assert found[1][0] < found[0][0]
    alone = [str(each.message) for each in caught if "a document at a time" in str(each.message)]
    no_kernel = family == "gemma4_text" and is_wide("cuda", 512, 512)
    assert no_kernel == any("heads of 512" in each for each in alone)


@needs_gpu
def test_float32_queries_run_in_the_dtype_of_the_layers_weights():
    flashmask.transformers.register()
    model, inputs = made("llama4_text", "flashmask", torch.bfloat16), packed("llama4_text")
    expected = model(**inputs).logits.float()
    attention = model.model.layers[1].self_attn
    attention.q_proj.register_forward_hook(lambda _module, _inputs, out: out.float())
    found = model(**inputs).logits.float()
    assert float((found - expected).abs().max()) < 0.02 * float(expected.abs().max())


@needs_gpu
def test_a_float32_model_is_refused_with_the_ways_out():
    flashmask.transformers.register()
    model, inputs = made("llama4_text", "flashmask", torch.float32), packed("llama4_text")
    with pytest.raises(NotImplementedError, match=r"float32 on cuda:0; .*dtype=torch\.bfloat16, .*autocast, or .*CPU"):
        model(**inputs)
