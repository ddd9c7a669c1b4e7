# SPDX-License-Identifier: Apache-2.0
"""long_context() on models of Transformers: losses and gradients of the model alone, and what is refused."""

import copy
import functools

import pytest

torch = pytest.importorskip("torch", reason="flashmask.training is for torch")
transformers = pytest.importorskip("transformers", reason="long_context() takes its models")

from docs_scripts import docs_script  # noqa: E402
from training_models import KINDS, WORDS, assert_same, batch, in_double, lora, loss_and_gradients, tiny  # noqa: E402

from flashmask.training import layer_parts, long_context  # noqa: E402

pytestmark = pytest.mark.slow  # whole models, which say nothing about one instruction set
WAYS = [
    {"chunk": 33},
    {"chunk": 1000},
    {"chunk": 33, "keep": 2},
    {"chunk": 50, "keep": 3, "offload": 1},
    {"chunk": 33, "offload": True},
    {"chunk": 33, "hold_attention": True},
    {"chunk": 33, "hold_attention": True, "keep": 2, "offload": True},
]


def check(model, given, **options):
    exact = loss_and_gradients(in_double(model), given)
    plain = loss_and_gradients(copy.deepcopy(model), given)
    with long_context(model, **options):
        found = loss_and_gradients(model, given)
    assert_same(found, plain, exact)


@pytest.mark.parametrize("options", WAYS, ids=str)
def test_llama_learns_the_same(options):
    check(tiny(), batch(), **options)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_learns_the_same(kind):
    check(tiny(kind), batch(), chunk=33, keep=2, offload=True)


@pytest.mark.parametrize("kind", KINDS)
def test_adapters_learn_the_same(kind):
    pytest.importorskip("peft", reason="its LoRA is what is tested")
    check(lora(tiny(kind)), batch(), chunk=33, keep=2)


def test_adapters_with_dropout_drop_the_same_again():
    """The backward draws what the forward drew: a step along the gradient changes the loss by what it says."""
    pytest.importorskip("peft", reason="its LoRA is what is tested")
    model, given = lora(tiny(num_hidden_layers=2), lora_dropout=0.3).double(), batch()
    model.set_attn_implementation("eager")
    learned = [each for each in model.parameters() if each.requires_grad]

    def loss():
        torch.manual_seed(5)
        return model(**given).loss

    with long_context(model.train(), chunk=33, keep=2):
        found = torch.autograd.grad(loss(), learned)
        steps = [torch.randn_like(each) for each in learned]
        values = []
        for sign in (1, -1):
            for each, step in zip(learned, steps, strict=True):
                each.data += sign * 1e-5 * step
            with torch.no_grad():
                values.append(loss().item())
            for each, step in zip(learned, steps, strict=True):
                each.data -= sign * 1e-5 * step
    along = sum((a * b).sum() for a, b in zip(found, steps, strict=True)).item()
    assert (values[0] - values[1]) / 2e-5 == pytest.approx(along, rel=1e-3)  # parts are in float32


def test_adapters_of_float32_on_bfloat16_learn_what_peft_says():
    pytest.importorskip("peft", reason="its LoRA is what is tested")
    model, given = lora(tiny().bfloat16()), batch()
    assert {each.dtype for each in model.parameters() if each.requires_grad} == {torch.float32}
    plain = loss_and_gradients(copy.deepcopy(model), given)
    exact = loss_and_gradients(in_double(model), given)
    with long_context(model, chunk=33):
        found = loss_and_gradients(model, given)
    for name, reference in exact[1].items():
        ours, theirs = ((each[1][name].double() - reference).norm() for each in (found, plain))
        assert ours <= 1.5 * theirs + 1e-3 * reference.norm(), name


@pytest.mark.parametrize("wrap", [lambda model: model, lora])
def test_compiled_code_serves_all_layers(monkeypatch, wrap):
    pytest.importorskip("peft", reason="its LoRA is what is tested")
    torch._dynamo.reset()
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    check(wrap(tiny()), batch((60, 39)), chunk=33, compile=True)
    assert (
        torch._dynamo.utils.counters["stats"]["unique_graphs"] - before <= 4
    )  # each part, with a gradient and without


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_attends_as_the_model_says(implementation):
    model, given = tiny(), batch((101,))
    model.set_attn_implementation(implementation)
    exact, plain = loss_and_gradients(in_double(model), given), loss_and_gradients(copy.deepcopy(model), given)
    with long_context(model, chunk=40, hold_attention=True):
        assert_same(loss_and_gradients(model, given), plain, exact)


@pytest.mark.parametrize("kind", KINDS)
def test_row_indices_reach_attention_with_the_window_of_the_layer(kind):
    given = batch((101,))
    ends = torch.tensor([40] * 40 + [101] * 61, dtype=torch.int32)
    given["startend_row_indices"] = ends[None, None, :, None].expand(2, 1, -1, 1)
    model = tiny(kind)
    plain = loss_and_gradients(copy.deepcopy(model), given)
    without = loss_and_gradients(copy.deepcopy(model), batch((101,)))
    with long_context(model, chunk=33):
        found = loss_and_gradients(model, given)
    torch.testing.assert_close(found[0], plain[0], atol=1e-6, rtol=0)
    assert abs(found[0] - without[0]) > 1e-4


def test_loss_is_divided_by_the_items_of_the_batch():
    model, given = tiny(), batch()
    expected = model(**given, num_items_in_batch=torch.tensor(77)).loss
    with long_context(model):
        found = model(**given, num_items_in_batch=torch.tensor(77))
    torch.testing.assert_close(found.loss, expected, atol=1e-6, rtol=1e-6)
    assert found.logits is None


def test_what_has_no_labels_has_the_logits_it_had():
    model, given = tiny(), batch()
    del given["labels"]
    expected = model(**given, output_hidden_states=True)
    with long_context(model, chunk=33, keep=2):
        found = model(**given, output_hidden_states=True)
        with torch.no_grad():
            torch.testing.assert_close(model(**given).logits, expected.logits, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found.logits, expected.logits, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found.hidden_states, expected.hidden_states, atol=1e-5, rtol=1e-5)


def test_generates_what_it_did():
    model, ids = tiny().eval(), batch()["input_ids"]
    expected = model.generate(ids, max_new_tokens=4, do_sample=False)
    with long_context(model, chunk=33):
        assert torch.equal(model.generate(ids, max_new_tokens=4, do_sample=False, use_cache=True), expected)


def test_gradients_add_up_over_batches():
    model, first, second = tiny(), batch(), batch((70,), seed=3)
    plain = copy.deepcopy(model)
    for given in (first, second):
        plain(**given).loss.backward()
    with long_context(model, chunk=33):
        losses = [model(**given).loss for given in (first, second)]
        sum(losses).backward()
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, atol=1e-5, rtol=1e-4)


def test_close_undoes_all():
    model = tiny()
    model.config.use_cache = True
    owned = [name for name, module in model.named_modules() if "forward" in vars(module)]
    held = long_context(model, offload=True)
    model(**batch()).loss.backward()
    assert not model.config.use_cache and held.host_memory.bytes
    held.close()
    held.close()
    assert model.config.use_cache and held.host_memory.bytes == 0
    assert [name for name, module in model.named_modules() if "forward" in vars(module)] == owned


def test_an_error_in_a_step_gives_host_memory_back():
    model = tiny()
    with pytest.raises(KeyboardInterrupt), long_context(model, offload=True) as held:
        model(**batch())
        assert held.host_memory.bytes
        raise KeyboardInterrupt
    assert held.host_memory.bytes == 0
    assert model(**batch()).logits is not None


def test_host_memory_is_used_again_in_the_next_step():
    model = tiny()
    with long_context(model, offload=True) as held:
        sizes = []
        for _ in range(3):
            model(**batch()).loss.backward()
            sizes.append(held.host_memory.bytes)
    assert sizes == [3 * 2 * 101 * 64 * 4] * 3


class Other(torch.nn.Module):
    """A decoder whose layers nobody knows."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(2, 2)])


def phi():
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 9, "pad_token_id": 0}
    return transformers.Phi3ForCausalLM(transformers.Phi3Config(**sizes, intermediate_size=8, num_key_value_heads=2))


def with_head(model):
    model.lm_head = torch.nn.Sequential(model.lm_head)
    return model


def with_loss(model):
    model.loss_function = torch.nn.functional.cross_entropy
    return model


def with_forward(model):
    model.model.layers[2].forward = model.model.layers[2].forward
    return model


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (
            Other,
            "layers of class torch.nn.modules.linear.Linear are not understood; .* Llama, Mistral, Qwen2",
        ),
        (phi, "layers of class transformers.models.phi3.modeling_phi3.Phi3DecoderLayer are not understood"),
        (
            lambda: docs_script("transformers_families").make("olmo_hybrid", "flashmask"),
            r"layers that carry a state \(OlmoHybridGatedDeltaNet\), .* use model.gradient_checkpointing_enable\(\)",
        ),
        (lambda: torch.nn.Linear(2, 2), "Linear has no list of decoder layers"),
        (lambda: with_head(tiny()), "lm_head of LlamaForCausalLM is a Sequential"),
        (lambda: with_loss(tiny()), "LlamaForCausalLM has a loss_function of its own"),
        (lambda: with_forward(tiny()), r"the forward of a layer \(LlamaDecoderLayer\) was replaced"),
    ],
)
def test_refuses_models_by_name(make, says):
    with pytest.raises(ValueError, match=says):
        long_context(make())


def test_refuses_a_model_that_has_it_already():
    model = tiny()
    with long_context(model), pytest.raises(ValueError, match="second long_context"):
        long_context(model)


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"chunk": 0}, ValueError, "chunk is 0"),
        ({"keep": 0}, ValueError, "keep is 0"),
        ({"keep": 1.5}, TypeError, "keep is float 1.5"),
        ({"offload": -1}, ValueError, "offload is -1"),
        ({"hold_attention": 1}, TypeError, "hold_attention is int 1"),
        ({"compile": "yes"}, TypeError, "compile is str 'yes'"),
    ],
)
def test_refuses_options_by_name(options, error, says):
    model = tiny()
    with pytest.raises(error, match=says):
        long_context(model, **options)
    assert "forward" not in vars(model)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"labels": torch.zeros(2, 100, dtype=torch.int64)}, r"labels has shape \[2, 100\]; expected \[2, 101\]"),
        ({"labels": torch.full((2, 101), WORDS)}, f"labels holds {WORDS}; expected words from 0 to 49"),
        ({"startend_row_indices": torch.zeros(1, 1, 90, 1, dtype=torch.int32)}, "expected .* 101, n. for 101 keys"),
        ({"use_cache": True}, "call the model with use_cache=False"),
        ({"return_dict": False}, "return_dict is False"),
    ],
)
def test_refuses_batches_in_one_sentence(change, says):
    model = tiny()
    with long_context(model, offload=True) as held:
        with pytest.raises(ValueError, match=says):
            model(**{**batch(), **change})
        model(**batch()).loss.backward()
        assert held.host_memory.bytes == 3 * 2 * 101 * 64 * 4


def test_refuses_dropout_of_attention():
    model = tiny(attention_dropout=0.1).train()
    with long_context(model):
        with pytest.raises(ValueError, match=r"attention_dropout is 0\.1"):
            model(**batch())
        assert model.eval()(**batch()).loss.isfinite()


def test_refuses_rope_of_positions_without_a_batch():
    layer, turned = tiny().model.layers[0], torch.ones(101, 16)
    with pytest.raises(ValueError, match=r"position_embeddings are \[101, 16\] and .*expected \[1 or B, S, head dim\]"):
        layer_parts(layer, position_embeddings=(turned, turned))


def test_refuses_to_be_copied():
    model = tiny()
    with long_context(model), pytest.raises(RuntimeError, match="copy it before, or after close"):
        copy.deepcopy(model)
    assert copy.deepcopy(model)(**batch()).loss.isfinite()


def trained(path, data, **options):
    """Losses of three steps of transformers.Trainer, in bfloat16 by autocast."""
    pytest.importorskip("accelerate", reason="Trainer runs on it")
    model = tiny()
    arguments = transformers.TrainingArguments(
        output_dir=str(path),
        per_device_train_batch_size=2,
        max_steps=3,
        logging_steps=1,
        gradient_checkpointing=True,
        bf16=True,
        use_cpu=True,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
    )
    held = long_context(model, **options) if options else None
    trainer = transformers.Trainer(model=model, args=arguments, train_dataset=data)
    trainer.train()
    if held:
        held.close()
    assert model(**batch()).logits is not None
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def test_trainer_trains_what_it_would(tmp_path):
    rows = batch(sequences=6)
    data = [{name: each[row] for name, each in rows.items()} for row in range(6)]
    expected = trained(tmp_path, data)
    assert trained(tmp_path, data, chunk=33, keep=2, offload=True) == pytest.approx(expected, abs=2e-3)
    assert len(set(expected)) == 3
