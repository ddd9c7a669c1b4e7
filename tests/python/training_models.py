# SPDX-License-Identifier: Apache-2.0
"""Tiny models of Transformers for the tests of flashmask.training, and how their gradients are held against others."""

import copy

import torch
import transformers

import flashmask.transformers

flashmask.transformers.register()

WORDS = 50
#: Of each kind that long_context() knows: its configuration, and what it has that others have not.
KINDS = {
    "Llama": (transformers.LlamaConfig, {}),
    "Mistral": (transformers.MistralConfig, {"sliding_window": 24}),
    "Qwen2": (transformers.Qwen2Config, {"sliding_window": 24, "use_sliding_window": True, "max_window_layers": 2}),
    "Qwen3": (transformers.Qwen3Config, {"head_dim": 16}),
    "Gemma3": (
        transformers.Gemma3TextConfig,
        {"head_dim": 16, "sliding_window": 24, "final_logit_softcapping": 3.0, "query_pre_attn_scalar": 16},
    ),
}


def tiny(kind="Llama", head="ForCausalLM", **options):
    """A random model of four layers, 64 wide, in float32."""
    torch.manual_seed(0)
    make, own = KINDS[kind]
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "vocab_size": WORDS}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "attn_implementation": "flashmask"}
    config = make(**{**sizes, **heads, **own, **options})
    return getattr(transformers, kind + head)(config)


def batch(lengths=(40, 61), sequences=2, seed=0):
    """Documents side by side in each sequence; their first ten tokens are no labels."""
    draw = torch.Generator().manual_seed(seed)
    ids = torch.randint(WORDS, (sequences, sum(lengths)), generator=draw)
    positions = torch.cat([torch.arange(each) for each in lengths])[None].expand(sequences, -1)
    return {"input_ids": ids, "position_ids": positions, "labels": ids.masked_fill(positions < 10, -100)}


def lora(model, **options):
    """The model with PEFT's LoRA on all linear layers, whose second factors are not zero."""
    import peft

    config = peft.LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM", **options)
    made = peft.get_peft_model(model, config)
    torch.manual_seed(1)
    for name, parameter in made.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    return made


def in_double(model):
    """The same model in float64, with attention by its formula."""
    made = copy.deepcopy(model).double()
    made.set_attn_implementation("eager")
    return made


def loss_and_gradients(model, given, loss_of=None):
    """The loss, and the gradient of each parameter that learns."""
    model.zero_grad()
    loss = model(**given).loss if loss_of is None else loss_of(model, given)
    loss.backward()
    return loss.detach(), {name: each.grad for name, each in model.named_parameters() if each.requires_grad}


def assert_same(found, plain, exact):
    """A loss to 1e-6, and gradients twice as far from float64 as plain autograd is, or less, beside their rounding."""
    torch.testing.assert_close(found[0].double(), plain[0].double(), atol=1e-6, rtol=1e-6)
    assert found[1].keys() == plain[1].keys() == exact[1].keys()
    for name, reference in exact[1].items():
        assert found[1][name] is not None, name
        ours, theirs = ((each[1][name].double() - reference).abs().max() for each in (found, plain))
        limit = 2 * theirs + 1e-6 * reference.abs().max()
        assert ours <= limit, f"{name}: {ours:.2e} > {limit:.2e}"
