# SPDX-License-Identifier: Apache-2.0
"""Few tokens against a cache, in Transformers' models: the logits of eager attention, in parts of the keys."""

import pytest

torch = pytest.importorskip("torch", reason="Transformers runs on torch")
transformers = pytest.importorskip("transformers", reason="tests its integration")

import flashmask.transformers  # noqa: E402
from flashmask._options import CallOptions  # noqa: E402
from flashmask._torch import decode  # noqa: E402
from flashmask.transformers._few_rows import few_rows  # noqa: E402
from flashmask.transformers._indices import Indices  # noqa: E402

flashmask.transformers.register()


def model(implementation, **changes):
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "vocab_size": 40}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512}
    config = transformers.MistralConfig(**sizes, **heads, attn_implementation=implementation, **changes)
    return transformers.MistralForCausalLM(config).eval()


@pytest.fixture
def parts_made(monkeypatch):
    """The parts that layers were computed in, on a device with many multiprocessors of small tiles."""
    made = []
    real = decode.attend_in_parts
    monkeypatch.setattr(decode, "attend_in_parts", lambda *given: made.append(given[4]) or real(*given))
    monkeypatch.setattr(decode, "_workers", lambda q: 300)
    monkeypatch.setattr(decode, "_TILE", 4)
    decode._known_best_splits.cache_clear()
    yield made
    decode._known_best_splits.cache_clear()


@pytest.mark.parametrize("window", [None, 9])
@pytest.mark.parametrize("padded", [False, True])
def test_drafts_behind_a_cache_get_the_logits_of_eager_attention(window, padded, parts_made):
    ids = torch.randint(1, 40, (2, 60), generator=torch.Generator().manual_seed(1))
    real = torch.ones(2, 60, dtype=torch.long)
    real[0, :7] = not padded
    logits = []
    for implementation in ("flashmask", "eager"):
        made = model(implementation, sliding_window=window)
        cache = transformers.DynamicCache(config=made.config)
        with torch.no_grad():
            for piece, end in ((slice(0, 44), 44), (slice(44, 60), 60)):
                given = {"attention_mask": real[:, :end], "past_key_values": cache}
                out = made(ids[:, piece], **given).logits
        logits.append(out)
    torch.testing.assert_close(logits[0], logits[1], atol=2e-6, rtol=0)
    assert len(parts_made) == 2
    if window is None:
        assert all(parts.splits > 1 for parts in parts_made)


def test_assisted_generation_is_greedy_generation():
    ids = torch.randint(1, 40, (1, 30), generator=torch.Generator().manual_seed(2))
    options = {"max_new_tokens": 12, "do_sample": False}
    made = model("flashmask", sliding_window=None)
    found = made.generate(ids, prompt_lookup_num_tokens=4, **options)
    assert found.tolist() == model("eager", sliding_window=None).generate(ids, **options).tolist()


def test_other_masks_and_calls_go_another_way():
    q, k = torch.zeros(1, 4, 4, 8), torch.zeros(1, 60, 2, 8)
    vectors = torch.tensor([4, 0], dtype=torch.int32).expand(1, 1, 60, 2).contiguous()

    def served(q=q, k=k, vectors=vectors, causal=False, dropout=0.0, **others):
        options = CallOptions(dropout=dropout, **others)
        return few_rows(q, k, k, Indices(vectors, causal), options) is not None

    assert served()
    assert not served(causal=True)  # two vectors mean something else there
    assert not served(vectors=vectors.repeat(1, 1, 1, 2))
    assert not served(vectors=vectors.repeat(1, 2, 1, 1))
    assert not served(dropout=0.1)
    assert not served(deterministic=True)
    assert not served(q=q.repeat(1, 5, 1, 1))
    assert not served(k=k[:, :4], vectors=vectors[:, :, :4])  # no cache
    assert few_rows(q, k, k, torch.ones(1, 1, 4, 60, dtype=torch.bool), CallOptions()) is None


@pytest.mark.parametrize("rows", [1, 5])
def test_sinks_of_a_model_are_taken_along(rows, parts_made):
    generator = torch.Generator().manual_seed(3)
    q, k, v = (torch.randn(2, n, heads, 8, generator=generator) for n, heads in ((rows, 4), (60, 2), (60, 2)))
    sinks = torch.tensor([1.0, -2.0, 0.5, 3.0])
    vectors = torch.tensor([rows, 0], dtype=torch.int32).expand(1, 1, 60, 2).contiguous()
    found = few_rows(q, k, v, Indices(vectors, False), CallOptions(scale=0.4, sinks=sinks))
    torch.testing.assert_close(found, flashmask.attention(q, k, v, scale=0.4, sinks=sinks))
    assert parts_made[0].splits > 1
