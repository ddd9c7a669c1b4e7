# SPDX-License-Identifier: Apache-2.0
"""VideoPrism, whose layers over patches, frames and text cap their scores: outputs and gradients of eager attention."""

import pytest

torch = pytest.importorskip("torch", reason="Transformers runs on torch")
transformers = pytest.importorskip("transformers", reason="tests its integration")

if not hasattr(transformers, "VideoPrismClipModel"):
    pytest.skip(f"Transformers {transformers.__version__} has no VideoPrism", allow_module_level=True)

import flashmask.transformers  # noqa: E402

flashmask.transformers.register()

CAP = 2.0  # what scores reach here, as they reach 50 in large models
SIZES = {"hidden_size": 128, "intermediate_size": 96, "num_attention_heads": 2, "attn_logit_softcapping": CAP}


def model(implementation, cap=CAP):
    """Heads of 64 over 4 × 4 patches in 3 frames, and text."""
    sizes = {**SIZES, "attn_logit_softcapping": cap}
    layers = {"num_spatial_layers": 2, "num_temporal_layers": 2, "num_auxiliary_layers": 1}
    config = transformers.VideoPrismConfig(
        vision_config={**sizes, **layers, "image_size": 24, "tubelet_size": [1, 6, 6], "num_frames": 3},
        text_config={**sizes, "num_hidden_layers": 2, "vocab_size": 64, "max_position_embeddings": 32},
    )
    torch.manual_seed(0)
    made = transformers.AutoModel.from_config(config, attn_implementation=implementation)
    for name, parameter in made.named_parameters():
        if "q_proj" in name or "k_proj" in name or "query" in name or "key" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    return made.train()


def batch():
    generator = torch.Generator().manual_seed(1)
    present = torch.ones(2, 11, dtype=torch.long)
    present[1, 7:] = 0
    return {
        "pixel_values_videos": torch.randn(2, 3, 3, 24, 24, generator=generator),
        "input_ids": torch.randint(1, 64, (2, 11), generator=generator),
        "attention_mask": present,
    }


def results(made):
    out = made(**batch())
    (out.video_embeds.sin() * 3 + out.text_embeds.cos() * 2).sum().backward()
    gradients = {name: each.grad for name, each in made.named_parameters() if each.grad is not None}
    return out.video_embeds.detach(), out.text_embeds.detach(), gradients


def test_videoprism_is_capped_as_under_eager():
    *expected, gradients_of = results(model("eager"))
    *found, gradients = results(model("flashmask"))
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-4)
    assert gradients.keys() == gradients_of.keys()
    for name, gradient in gradients_of.items():
        torch.testing.assert_close(gradients[name], gradient, atol=2e-5, rtol=1e-3, msg=name)
    *uncapped, _ = results(model("flashmask", cap=1e4))
    assert all(float((one - other).abs().max()) > 1e-3 for one, other in zip(found, uncapped, strict=True))
