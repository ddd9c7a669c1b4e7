# SPDX-License-Identifier: Apache-2.0
"""Families of language models in Transformers: the table in docs/transformers.md says what is found by trying them."""

import warnings

import pytest

torch = pytest.importorskip("torch", reason="Transformers runs on torch")
transformers = pytest.importorskip("transformers", reason="tests its integration")

from docs_scripts import docs_script  # noqa: E402
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, masking_utils  # noqa: E402
from transformers.utils import generic  # noqa: E402

import flashmask.transformers  # noqa: E402
from flashmask.transformers import _attention, _heads, _name, _once, _wide, flashmask_mask  # noqa: E402

families = docs_script("transformers_families")

VERSION, VERDICTS = families.read()
QUICK = [  # one of each kind
    *("llama", "gpt_oss", "llama4_text", "gemma4_text", "deepseek_v32", "minimax_m3_vl_text", "cohere2", "bart"),
    *("qwen3_next", "falcon", "doge", "gemma2", "inkling2_text", "mamba", "xlstm", "gemma3", "musicgen"),
    *("qwen2_5_vl_text", "hunyuan_vl_text", "dory"),
]

flashmask.transformers.register()


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.skipif(transformers.__version__ != VERSION, reason=f"the table is about Transformers {VERSION}")
class TestTable:
    """Each row of the table, found again."""

    def test_names_every_family(self):
        assert list(VERDICTS) != [] and set(VERDICTS) == set(families.FAMILIES)

    @pytest.mark.parametrize("family", QUICK)
    def test_says_what_is_found(self, family):
        assert families.verdict(family) == VERDICTS[family]

    @pytest.mark.slow
    @pytest.mark.parametrize("family", [each for each in families.FAMILIES if each not in QUICK])
    def test_says_what_is_found_of_the_others(self, family):
        assert families.verdict(family) == VERDICTS[family]


def packed(lengths=(7, 1, 12, 4), **others):
    """Documents side by side, told by their positions; with a cache, as training has unless told not to."""
    ids = torch.randint(3, 60, (1, sum(lengths)), generator=torch.Generator().manual_seed(1))
    positions = torch.cat([torch.arange(length) for length in lengths])[None]
    return {"input_ids": ids, "position_ids": positions, "use_cache": True, **others}


def alone(model, ids, lengths=(7, 1, 12, 4)):
    return torch.cat([model(input_ids=each, use_cache=False).logits for each in ids.split(lengths, 1)], 1)


@pytest.mark.parametrize("family", ["gpt_oss", "llama4_text", "deepseek_v32", "gemma4_text"])
def test_documents_are_found_with_an_empty_cache_too(family):
    # Transformers itself looks for them without a cache only, and Llama 4's chunks would begin amid documents.
    model, inputs = families.make(family, "flashmask"), packed()
    expected = alone(model, inputs["input_ids"])
    assert float((model(**inputs).logits - expected).detach().abs().max()) < 1e-5 * float(expected.detach().abs().max())


class TestPositions:
    """Where documents begin, in models that do not hand their positions on to what makes masks."""

    def texts_and_images(self):
        """Positions on three axes: a document with an image of 2 × 3 patches, and one that begins with one of 2 × 2."""
        first = (
            [(t,) * 3 for t in range(3)]
            + [(3, 3 + y, 3 + x) for y in range(2) for x in range(3)]
            + [(6,) * 3, (7,) * 3]
        )
        second = [(0, y, x) for y in range(2) for x in range(2)] + [(t,) * 3 for t in range(2, 5)]
        return [torch.tensor(each).T[:, None] for each in (first, second)]

    @pytest.mark.parametrize("family", ["qwen2_5_vl_text", "qwen3_vl_text"])
    def test_documents_with_images_are_what_they_are_alone(self, family):
        made, parts = families.Runs(family, "flashmask"), self.texts_and_images()
        lengths = [each.shape[-1] for each in parts]
        ids = made.ids[:, : sum(lengths)]
        expected = [
            made._logits(each, position_ids=positions)
            for each, positions in zip(ids.split(lengths, 1), parts, strict=True)
        ]
        found = made._logits(ids, position_ids=torch.cat(parts, -1))
        torch.testing.assert_close(found, torch.cat(expected, 1), atol=1e-5, rtol=1e-4)
        plain = families.Runs(family, "eager")._logits(ids[:, : lengths[0]], position_ids=parts[0])
        torch.testing.assert_close(expected[0], plain, atol=1e-5, rtol=1e-4)

    @pytest.mark.parametrize("kind", ["AlignTextModel", "BertModel", "ModernBertModel"])
    def test_encoders_keep_documents_apart(self, kind):
        torch.manual_seed(0)
        kind = getattr(transformers, kind)
        sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
        ids = {"vocab_size": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
        config = kind.config_class(**sizes, **ids, attn_implementation="flashmask")
        config._attn_implementation = "flashmask"
        model, inputs = kind(config).eval(), packed()
        for parameter in model.parameters():
            parameter.data.normal_(std=0.3)
        given = {name: inputs[name] for name in ("input_ids", "position_ids")}
        parts = [each.split((7, 1, 12, 4), 1) for each in given.values()]
        expected = torch.cat(
            [model(input_ids=ids, position_ids=at).last_hidden_state for ids, at in zip(*parts, strict=True)], 1
        )
        for others in ({}, {"attention_mask": torch.ones(1, 24, dtype=torch.long)}):
            torch.testing.assert_close(model(**given, **others).last_hidden_state, expected, atol=1e-4, rtol=1e-4)

    @pytest.mark.parametrize("family", ["llama4_text", "deepseek_v32", "gpt_bigcode"])
    def test_documents_beside_a_mask_of_padding_are_what_they_are_alone(self, family):
        """Llama 4's chunks begin with each document, and a mask of pairs, for chosen keys, has documents too."""
        model = families.make(family, "flashmask")
        ids = packed()["input_ids"].repeat(2, 1)
        positions = torch.stack([packed()["position_ids"][0], torch.tensor([0] * 4 + [*range(12), *range(8)])])
        real = torch.ones(2, 24, dtype=torch.long)
        real[1, :4] = 0
        found = model(input_ids=ids, position_ids=positions, attention_mask=real, use_cache=False).logits
        expected = alone(model, ids[:1])
        behind = alone(model, ids[1:, 4:], (12, 8))
        torch.testing.assert_close(found[:1], expected, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(found[1:, 4:], behind, atol=1e-4, rtol=1e-4)

    @pytest.mark.parametrize("static", [False, True])
    def test_documents_behind_a_cache_are_what_they_are_alone(self, static):
        model, ids = families.make("llama", "flashmask"), packed()["input_ids"]
        expected = torch.cat([alone(model, ids[:, :15], (15,)), alone(model, ids[:, 15:], (9,))], 1)
        cache = (
            transformers.StaticCache(config=model.config, max_cache_len=32) if static else transformers.DynamicCache()
        )
        positions = torch.cat([torch.arange(15), torch.arange(9)])[None]
        pieces = slice(8), slice(8, 24)
        found = [model(input_ids=ids[:, each], position_ids=positions[:, each], cache=cache).logits for each in pieces]
        torch.testing.assert_close(torch.cat(found, 1), expected, atol=1e-4, rtol=1e-4)

    def test_positions_that_a_model_makes_itself_are_no_documents(self):
        """Decision Transformer gives all tokens position 0."""
        sizes = {"state_dim": 3, "act_dim": 2, "hidden_size": 32, "n_layer": 1, "n_head": 4, "max_ep_len": 16}
        states, actions, returns = torch.randn(1, 5, 3), torch.randn(1, 5, 2), torch.randn(1, 5, 1)
        found = []
        for name in ("flashmask", "eager"):
            torch.manual_seed(0)
            config = transformers.DecisionTransformerConfig(**sizes, vocab_size=1)
            config._attn_implementation = name
            model = transformers.DecisionTransformerModel(config).eval()
            inputs = {"states": states, "actions": actions, "rewards": None, "returns_to_go": returns}
            timesteps = torch.arange(5)[None]
            found.append(model(**inputs, timesteps=timesteps, attention_mask=torch.ones(1, 5)).last_hidden_state)
        torch.testing.assert_close(*found, atol=1e-5, rtol=1e-5)

    def test_documents_of_other_tokens_than_those_of_the_mask_are_refused(self):
        inputs = packed()
        with pytest.raises(ValueError, match=r"position_ids \[1, 24\] say several documents, .* a mask of \[1, 12\]"):
            families.make("llama", "flashmask")(inputs["input_ids"][:, :12], position_ids=inputs["position_ids"])

    def test_parts_that_mix_tokens_without_a_mask_refuse_documents(self):
        sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4}
        config = transformers.MobileBertConfig(**sizes, vocab_size=64, embedding_size=32, intra_bottleneck_size=32)
        config._attn_implementation = "flashmask"
        model, inputs = transformers.MobileBertModel(config), packed()
        with pytest.raises(ValueError, match=r"MobileBertModel, .*: its embeddings join those of neighbouring tokens"):
            model(inputs["input_ids"], position_ids=inputs["position_ids"])
        assert model(inputs["input_ids"]).last_hidden_state.shape == (1, 24, 32)

    def test_layers_that_get_neither_a_mask_nor_positions_refuse_documents(self):
        """The text model of AIMv2 makes a mask of one of padding alone."""
        sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4}
        config = transformers.Aimv2TextConfig(**sizes, vocab_size=64, eos_token_id=2)
        config._attn_implementation = "flashmask"
        model, inputs = transformers.Aimv2TextModel(config), packed()
        given = {name: inputs[name] for name in ("input_ids", "position_ids")}
        with pytest.raises(ValueError, match="Aimv2Attention got neither these nor a mask; hand the model"):
            model(**given)
        before = model(**given, attention_mask=torch.ones(1, 24)).last_hidden_state[:, 20:]
        given["input_ids"][:, :20] = 3
        assert torch.equal(model(**given, attention_mask=torch.ones(1, 24)).last_hidden_state[:, 20:], before)

    @pytest.mark.slow
    def test_a_compiled_model_of_images_keeps_documents_apart(self):
        made = families.Runs("qwen2_5_vl_text", "flashmask")
        compiled = torch.compile(made.model, fullgraph=True, backend="eager")
        inputs = {"input_ids": made.ids, "position_ids": made.positions.expand(3, 1, -1), "use_cache": False}
        torch.testing.assert_close(compiled(**inputs).last_hidden_state, made.alone()[0], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    "family", ["gemma2", "gpt_oss", "llama4_text", "deepseek_v32", "minimax_m3_vl_text", "gemma4_text"]
)
def test_generates_what_eager_attention_generates(family):
    ids = packed()["input_ids"][:, :18]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found, expected = (
            families.make(family, each).generate(ids, max_new_tokens=8, do_sample=False).tolist()
            for each in ("flashmask", "eager")
        )
    assert found == expected


def test_a_document_learns_nothing_from_another():
    model, inputs = families.make("gemma4_text", "flashmask"), packed()
    before = model(**inputs).logits[:, :20]
    inputs["input_ids"][0, 20:] = 3
    assert torch.equal(model(**inputs).logits[:, :20], before)


def test_models_that_like_builds_of_flash_attention_keep_the_name():
    model = families.make("granite_swa", "flashmask")
    assert model.config._attn_implementation == model.model.config._attn_implementation == "flashmask"
    with pytest.raises(ImportError):  # other names still fall back to what the class lists, which is not installed
        model.set_attn_implementation("flash_attention_2")


@pytest.mark.parametrize(
    ("family", "reason"),
    [
        ("falcon", "FalconForCausalLM cannot run .* never look at Transformers' registry"),
        ("bloom", "never look at Transformers' registry"),
        ("doge", "adds numbers of its own to the mask"),
    ],
)
def test_models_that_cannot_be_served_are_refused_when_they_are_made(family, reason):
    with pytest.raises(ValueError, match=reason):
        families.make(family, "flashmask")


def test_models_that_cannot_be_served_are_refused_when_they_are_given_the_name():
    with pytest.raises(ValueError, match="adds numbers of its own"):
        families.make("doge", "eager").set_attn_implementation("flashmask")


class PoolingAttention(torch.nn.Module):
    """Of a user, beside models that know the registry."""


class OwnLlama(transformers.LlamaForCausalLM):
    """Of a user, in a module that does not know it."""


def test_models_made_of_those_that_are_served_are_served():
    config = families.configuration("llama")
    config._attn_implementation = "flashmask"
    assert OwnLlama(config)(**packed()).logits.shape == (1, 24, 64)


def test_gemma2_without_a_cap_is_served():
    config = families.configuration("gemma2")
    config.attn_logit_softcapping = None
    assert AutoModelForCausalLM.from_config(config, attn_implementation="flashmask")


def test_vision_towers_go_on_to_hand_over_lengths():
    class Config:
        _attn_implementation = "flashmask"

    assert generic.is_flash_attention_requested(Config)
    assert not masking_utils.is_flash_attention_requested(Config)
    Config._attn_implementation = "flash_attention_2"
    assert masking_utils.is_flash_attention_requested(Config)


@pytest.fixture
def another_version(monkeypatch):
    """What a test does to Transformers is undone, and nothing was said before."""
    monkeypatch.setattr(_name, "_uncertain", [])
    monkeypatch.setattr(_once, "_warned", set())
    for each in _name._TABLE:
        held = getattr(each.owner, each.name)
        monkeypatch.setattr(each.owner, each.name, getattr(held, "__flashmask_original__", held))
    return monkeypatch


def test_what_a_version_lacks_is_said_once_when_a_model_is_made(another_version):
    def get_interface(self, attn_implementation, otherwise):
        raise AssertionError("not called by a tiny Llama that does not run")

    another_version.delattr(masking_utils, "is_flash_attention_requested")
    another_version.setattr(transformers.AttentionInterface, "get_interface", get_interface)
    flashmask.transformers.register("flashmask")
    assert transformers.AttentionInterface.get_interface is get_interface
    with pytest.warns(UserWarning) as said:
        families.make("llama", "flashmask")
    lines = [str(each.message) for each in said if "flashmask is tested with" in str(each.message)]
    assert len(lines) == 2
    assert f"tested with Transformers 5.5 to 5.24, and {transformers.__version__} is installed" in lines[0]
    assert "is_flash_attention_requested is gone" in lines[0]
    assert "get_interface has no parameter default" in lines[1]
    assert "ignore startend_row_indices" in lines[1]
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "flashmask is tested with")
        families.make("llama", "flashmask")


def test_a_version_without_the_check_of_a_model_is_said_when_the_name_is_registered(another_version):
    another_version.delattr(transformers.PreTrainedModel, "_check_and_adjust_attn_implementation")
    with pytest.warns(UserWarning, match="models that flashmask cannot serve are not refused"):
        flashmask.transformers.register("flashmask")


def test_restarting_positions_are_refused_where_blocks_are_chosen_by_position():
    model = families.make("minimax_m3_vl_text", "flashmask")
    with pytest.raises(ValueError, match=r"position_ids restart .* hand over cu_seq_lens_q"):
        model(**packed())


def test_dropped_columns_of_a_batch_are_refused_by_name():
    model = families.make("llama", "flashmask")
    with pytest.raises(ValueError, match=r"token_weights came .* a tensor \[1, 24\] of torch.float32 that it does not"):
        model(**packed(token_weights=torch.ones(1, 24)))
    model(**packed(num_items_in_batch=torch.tensor(24)))  # what trainers hand on has no meaning for attention


class TestModernBert:
    """Attention both ways, within windows, in a model that says whether gradients are to be the same on every run."""

    def model(self, implementation, **changes):
        torch.manual_seed(0)
        sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4}
        ids = {"vocab_size": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1}
        config = transformers.ModernBertConfig(**sizes, **ids, sep_token_id=2, local_attention=8, **changes)
        return AutoModelForMaskedLM.from_config(config, attn_implementation=implementation)

    @pytest.mark.parametrize("deterministic", [False, True])
    def test_is_eager_attention(self, deterministic):
        ids, real = packed()["input_ids"].expand(2, -1), torch.ones(2, 24, dtype=torch.long)
        real[0, 15:] = 0
        results = []
        for each in ("flashmask", "eager"):
            model = self.model(each, deterministic_flash_attn=deterministic).eval()
            logits = model(input_ids=ids, attention_mask=real).logits * real[..., None]
            logits.square().sum().backward()
            results.append([logits.detach(), *(p.grad for p in model.parameters())])
        for a, b in zip(*results, strict=True):
            assert torch.allclose(a, b, atol=2e-5 * max(1.0, float(b.abs().max())))

    def test_its_wish_for_the_same_gradients_is_passed_on(self, monkeypatch):
        asked = []
        forward = _attention.forward

        def recorded(q, k, v, call):
            asked.append(call.deterministic)
            return forward(q, k, v, call)

        monkeypatch.setattr(_attention, "forward", recorded)
        self.model("flashmask", deterministic_flash_attn=True)(input_ids=packed()["input_ids"])
        assert asked == [True] * 4


class TestWideHeads:
    """Heads wider than any kernel, on a device where kernels end before them; here, at 15."""

    @pytest.fixture(autouse=True)
    def narrow_kernels(self, monkeypatch):
        monkeypatch.setitem(_heads._TAKEN, "cpu", [[(15, 15)], [(15, 15)]])
        _once._warned.clear()

    def steps(self, implementation, inputs):
        model = families.make("gemma4_text", implementation)  # layers of 8, in windows, and of 512
        results = []
        for _ in range(2):
            model.zero_grad()
            logits = model(**inputs).logits
            torch.nn.functional.cross_entropy(logits[0, :-1], inputs["input_ids"][0, 1:]).backward()
            gradients = [each.grad.flatten() for each in model.parameters() if each.grad is not None]
            results.append((logits.detach(), torch.cat(gradients)))
            with torch.no_grad():
                for each in model.parameters():
                    if each.grad is not None:
                        each.sub_(0.02 * each.grad)
        return results

    @pytest.mark.parametrize("use_cache", [False, True])
    def test_packed_documents_run_one_by_one(self, use_cache, monkeypatch):
        lengths = []
        each_alone = _wide._each_alone
        monkeypatch.setattr(
            _wide, "_each_alone", lambda q, k, v, cuts, *o: lengths.append(cuts) or each_alone(q, k, v, cuts, *o)
        )
        with pytest.warns(UserWarning, match="no kernel for heads of 512 .* a document at a time") as warned:
            found = self.steps("flashmask", packed(use_cache=use_cache))
        assert lengths == [[[7, 1, 12, 4]]] * 2
        assert len([each for each in warned if "heads of 512" in str(each.message)]) == 1
        for (logits, gradient), (wanted, expected) in zip(
            found, self.steps("eager", packed(use_cache=False)), strict=True
        ):
            assert families.close((logits, gradient), (wanted, expected))

    @pytest.mark.parametrize("side", ["left", "right", "both sequences whole"])
    def test_anything_else_runs_under_booleans(self, side):
        real = torch.ones(2, 14, dtype=torch.long)
        if side != "both sequences whole":
            real[0, slice(0, 5) if side == "left" else slice(9, 14)] = 0
        results = []
        for each in ("flashmask", "eager"):
            model = families.make("gemma4_text", each)
            ids = torch.randint(3, 60, (2, 14), generator=torch.Generator().manual_seed(2))
            logits = model(input_ids=ids, attention_mask=real).logits * real[..., None]
            logits.square().sum().backward()
            grads = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
            results.append((logits.detach(), torch.cat(grads)))
        assert families.close(*results)

    @pytest.mark.parametrize(
        ("bounds", "alike"), [([0, 7, 8, 20, 24], True), ([0, 8, 24], False), ([0, 7, 9, 20, 24], False)]
    )
    def test_lengths_beside_positions_have_to_say_the_same(self, bounds, alike):
        mask = flashmask_mask(batch_size=1, q_length=24, kv_length=24)
        setattr(mask, _heads._LENGTHS, [[7, 1, 12, 4]])
        call = _wide.Call(1, 24, 24, "cpu", True, None, mask, None, None, torch.tensor(bounds), None)
        assert (_wide._documents(call) is not None) == alike

    def test_keys_that_a_model_chooses_are_refused_there(self):
        with pytest.raises(
            ValueError, match="indices came to a layer with heads of 16, for which flashmask has no kernel"
        ):
            families.make("deepseek_v32", "flashmask")(**packed())

    def test_rows_that_see_nothing_are_zero_and_give_no_gradient(self):
        draw = torch.Generator().manual_seed(0)
        q, k, v = (torch.randn(1, 2, 6, 20, generator=draw, requires_grad=True) for _ in range(3))
        visible = torch.ones(6, 6, dtype=torch.bool).tril()
        visible[2] = False
        call = _wide.Call(1, 6, 6, torch.device("cpu"), True, None, visible[None, None], None, None, None, None)
        out = _wide.wide_attention(q, k, v, call, dropout=0.0, scaling=0.3)
        out.sum().backward()
        assert not out[:, 2].any() and not q.grad[:, :, 2].any() and bool(q.grad[:, :, 3].any())
        weights = (0.3 * q @ k.mT).masked_fill(~visible, -torch.inf).softmax(-1).nan_to_num()
        assert torch.allclose(out, (weights @ v).transpose(1, 2), atol=1e-6)
