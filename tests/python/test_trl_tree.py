# SPDX-License-Identifier: Apache-2.0
"""The attention of TRL's trees: against float64, and against TRL's own over copies of every path."""

import inspect
import queue

import pytest

torch = pytest.importorskip("torch", reason="TRL runs on torch")
trl = pytest.importorskip("trl", reason="its trees are what is tested")

import transformers  # noqa: E402
from attention_oracle import softmax_attention  # noqa: E402
from datasets import Dataset  # noqa: E402
from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer, async_grpo_trainer, packing  # noqa: E402
from trl_models import SIZES, language_model, tokenizer  # noqa: E402

from flashmask.transformers import flashmask_attention_forward  # noqa: E402
from flashmask.trl import register_tree_attention, tree_attention  # noqa: E402

WINDOWS = [None, 1, 3, 100]


class Varlen:
    """What TRL takes FlashAttention from: each segment against its gathered path, dense."""

    @staticmethod
    def flash_attn_varlen_func(q, k, v, cu_q, cu_k, _, __, softmax_scale, causal, window_size):
        assert causal and window_size[1] in (-1, 0)
        outputs = []
        for (begin, end), (first, last) in zip(spans(cu_q), spans(cu_k), strict=True):
            row = torch.arange(end - begin)[:, None] + (last - first) - (end - begin)
            column = torch.arange(last - first)
            seen = column <= row
            if window_size[0] >= 0:
                seen &= row - column <= window_size[0]
            parts = (each[None].double() for each in (q[begin:end], k[first:last], v[first:last]))
            outputs.append(softmax_attention(*parts, seen[None, None], softmax_scale)[0][0])
        return torch.cat(outputs).to(q.dtype)


def spans(cu_seqlens):
    return list(zip(cu_seqlens[:-1].tolist(), cu_seqlens[1:].tolist(), strict=True))


def rollouts(seed):
    """Few words, so that samples fork everywhere, end inside others and repeat them."""
    draw = torch.Generator().manual_seed(seed)
    count = int(torch.randint(1, 12, (), generator=draw))
    lengths = torch.randint(1, 12, (count,), generator=draw).tolist()
    return [torch.randint(1 if seed % 2 else 3, 5, (length,), generator=draw) for length in lengths]


def packed_by_trl(samples):
    """The row of a batch as the trainer hands it to the model: input_ids, position_ids and the tree."""
    row = packing.TreeRow()
    for number, ids in enumerate(samples):
        extras = {"completion_mask": torch.ones_like(ids), "old_log_probs": torch.zeros(len(ids))}
        row.add({"input_ids": ids, "advantage": 1.0, "group_id": number, **extras})
    packed = row.pack()
    longest = packed["tree_max_seqlens"].tolist()
    tree = {name: packed[name] for name in ("tree_kv_index", "tree_cu_seqlens_q", "tree_cu_seqlens_k")}
    tree |= {"tree_max_seqlen_q": longest[0], "tree_max_seqlen_k": longest[1]}
    return {name: packed[name][None] for name in ("input_ids", "position_ids")}, tree


def paths(tree):
    """Rows from a root to the end of each segment."""
    return [tree["tree_kv_index"][first:last] for first, last in spans(tree["tree_cu_seqlens_k"])]


def visible(tree, window):
    """A row sees the last of its path up to itself."""
    tokens = int(tree["tree_cu_seqlens_q"][-1])
    seen = torch.zeros(tokens, tokens, dtype=torch.bool)
    for (begin, end), (first, last) in zip(
        spans(tree["tree_cu_seqlens_q"]), spans(tree["tree_cu_seqlens_k"]), strict=True
    ):
        path = tree["tree_kv_index"][first:last]
        for row in range(begin, end):
            upto = path[: len(path) - (end - row) + 1]
            seen[row, upto[-window:] if window else upto] = True
    return seen


def attend(function, q, k, v, tree, window):
    layer = torch.nn.Linear(1, 1)
    layer.config = transformers.LlamaConfig()
    return function(layer, q, k, v, None, **tree, scaling=0.3, sliding_window=window, position_ids=None)[0]


def inputs(tokens, dtype=torch.float32):
    torch.manual_seed(0)
    return [torch.randn(1, heads, tokens, 16, dtype=dtype, requires_grad=True) for heads in (4, 2, 2)]


@pytest.fixture
def varlen(monkeypatch):
    monkeypatch.setattr(packing, "_flash_attn", lambda: Varlen)


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("seed", range(8))
def test_rows_attend_over_their_paths(seed, window, varlen):
    _, tree = packed_by_trl(rollouts(seed))
    three = inputs(int(tree["tree_cu_seqlens_q"][-1]))
    o = attend(tree_attention, *three, tree, window)
    weight = torch.randn_like(o)
    exact = [each.detach().double().requires_grad_() for each in three]
    expected, _ = softmax_attention(*(each.transpose(1, 2) for each in exact), visible(tree, window)[None, None], 0.3)
    assert o.shape == expected.shape
    torch.testing.assert_close(o.double(), expected, atol=2e-6, rtol=0)
    gradients = torch.autograd.grad((o * weight).sum(), three)
    for found, right in zip(gradients, torch.autograd.grad((expected * weight).sum(), exact), strict=True):
        torch.testing.assert_close(found.double(), right, atol=2e-5, rtol=0)
    theirs = attend(packing.tree_attention, *three, tree, window)
    torch.testing.assert_close(o, theirs, atol=2e-6, rtol=0)
    of_theirs = torch.autograd.grad((theirs * weight).sum(), three)
    for found, other in zip(gradients, of_theirs, strict=True):
        torch.testing.assert_close(found, other, atol=2e-5, rtol=0)


def register_theirs():
    """As TRL does, also when its trainer is made later."""
    packing.register_tree_attention = async_grpo_trainer.register_tree_attention = register_theirs
    transformers.AttentionInterface.register(packing.TREE_ATTENTION, packing.tree_attention)
    transformers.AttentionMaskInterface.register(packing.TREE_ATTENTION, lambda **_: None)


def windowed():
    torch.manual_seed(0)
    kinds = {"sliding_window": 3, "layer_types": ["sliding_attention", "full_attention"], "use_sliding_window": True}
    return transformers.Qwen2ForCausalLM(
        transformers.Qwen2Config(**SIZES, **kinds, vocab_size=62, attn_implementation=packing.TREE_ATTENTION)
    )


@pytest.mark.parametrize("make", [lambda: language_model(packing.TREE_ATTENTION), windowed], ids=["plain", "windows"])
def test_a_model_gives_the_logits_that_it_gives_under_trl(make, varlen):
    samples = rollouts(5)
    given, tree = packed_by_trl(samples)
    logits, gradients = [], []
    for register in (register_theirs, register_tree_attention):
        register()
        model = make()
        logits.append(model(**given, **tree, use_cache=False).logits)
        logits[-1].square().mean().backward()
        gradients.append(model.model.layers[0].self_attn.k_proj.weight.grad)
    torch.testing.assert_close(*logits, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(*gradients, atol=1e-6, rtol=1e-5)
    model.set_attn_implementation("eager")
    alone = model(samples[0][None]).logits[0]  # the first sample lies in front, whole
    assert torch.equal(given["input_ids"][0, : len(alone)], samples[0])
    torch.testing.assert_close(logits[1][0, : len(alone)], alone, atol=1e-5, rtol=1e-5)


@pytest.mark.skipif(
    "s_aux" not in inspect.signature(flashmask_attention_forward).parameters, reason="models with sinks are refused"
)
def test_sinks_and_windows_of_gpt_oss_count_along_paths():
    """TRL's trainer refuses models with sinks before it asks for attention; its trees do not."""
    register_tree_attention()
    torch.manual_seed(0)
    sizes = {**SIZES, "head_dim": 8, "num_local_experts": 2, "num_experts_per_tok": 1, "sliding_window": 3}
    made = transformers.GptOssConfig(**sizes, vocab_size=62, attn_implementation=packing.TREE_ATTENTION)
    model = transformers.GptOssForCausalLM(made).eval()
    for layer in model.model.layers:
        torch.nn.init.normal_(layer.self_attn.sinks)
    samples = rollouts(5)
    given, tree = packed_by_trl(samples)
    logits = model(**given, **tree, use_cache=False).logits[0]
    model.set_attn_implementation("eager")
    for sample in samples:
        (path,) = [rows for rows in paths(tree) if torch.equal(given["input_ids"][0, rows], sample)][:1]
        alone = model(sample[None], use_cache=False).logits[0]
        torch.testing.assert_close(logits[path], alone, atol=1e-5, rtol=1e-5)


class Rollouts:
    """A worker that has finished: groups of four rollouts of a prompt, already in the queue."""

    def __init__(self, groups):
        draw = torch.Generator().manual_seed(0)
        self.rollout_buffer, self.metrics_queue = queue.Queue(), queue.Queue()
        for group in range(groups):
            prompt = torch.randint(2, 62, (6,), generator=draw)
            for number in range(4):
                answer = torch.randint(2, 62, (3 + number,), generator=draw)
                self.rollout_buffer.put(
                    async_grpo_trainer.RolloutSample(
                        prompt=[],
                        completion=[],
                        input_ids=torch.cat([prompt, answer]).numpy(),
                        completion_mask=torch.tensor([0] * 6 + [1] * len(answer)).numpy(),
                        old_log_probs=torch.full((6 + len(answer),), -4.0).numpy(),
                        advantage=(1.0, -1.0, 0.5, -0.5)[number],
                        model_version=0,
                        group_id=group,
                        metrics={},
                    )
                )

    def nothing(self, *_, **__):
        """There is no server, and no process to watch."""

    start = stop = update_model_version = check_health = nothing
    init_weight_transfer = pause = send_weights = resume = destroy = nothing


def test_the_trainer_logs_what_it_logs_under_trl(varlen, tmp_path, monkeypatch):
    monkeypatch.setattr(async_grpo_trainer, "get_peak_flops_per_device", lambda *_: None)  # asks a GPU
    monkeypatch.setattr(async_grpo_trainer, "VLLMClient", lambda *_: None)
    language_model("eager").save_pretrained(tmp_path / "model")
    logs = []
    for register in (register_theirs, register_tree_attention):
        register()
        worker = Rollouts(groups=12)
        trainer = AsyncGRPOTrainer(
            str(tmp_path / "model"),
            args=AsyncGRPOConfig(
                output_dir=str(tmp_path / "out"),
                per_device_train_batch_size=8,
                gradient_accumulation_steps=1,
                max_steps=3,
                learning_rate=1e-2,
                token_budget=-1,
                max_staleness=9,
                logging_steps=1,
                save_strategy="no",
                report_to="none",
                use_cpu=True,
                bf16=False,
                disable_tqdm=True,
                activation_checkpointing=False,
            ),
            train_dataset=Dataset.from_dict({"prompt": ["w1"] * 12}),
            processing_class=tokenizer(),
            rollout_worker=worker,
            weight_transfer=worker,
        )
        attention = transformers.modeling_utils.ALL_ATTENTION_FUNCTIONS[packing.TREE_ATTENTION]
        assert attention is (tree_attention if register is register_tree_attention else packing.tree_attention)
        trainer.train()
        logs.append([entry for entry in trainer.state.log_history if "loss" in entry])
    assert len(logs[0]) == len(logs[1]) == 3
    for expected, found in zip(*logs, strict=True):
        for name in ("loss", "grad_norm", "ratio", "kl", "entropy", "clip_ratio/region_mean"):
            assert found[name] == pytest.approx(expected[name], rel=1e-4, abs=1e-5), name


def test_nothing_is_copied_and_kv_index_is_not_looked_at():
    _, tree = packed_by_trl(rollouts(3))
    three = inputs(int(tree["tree_cu_seqlens_q"][-1]))
    o = attend(tree_attention, *three, tree, None)
    assert torch.equal(o, attend(tree_attention, *three, {**tree, "tree_kv_index": None}, None))


def test_what_it_cannot_serve_is_refused(monkeypatch):
    _, tree = packed_by_trl(rollouts(3))
    three = inputs(int(tree["tree_cu_seqlens_q"][-1]))
    with pytest.raises(ValueError, match="head_mask came to flashmask's attention"):
        tree_attention(torch.nn.Linear(1, 1), *three, None, **tree, head_mask=torch.ones(4))
    with pytest.raises(ValueError, match=r"attention_mask \[1, 4\] came beside a tree"):
        tree_attention(torch.nn.Linear(1, 1), *three, torch.ones(1, 4), **tree)
    monkeypatch.setattr(trl, "__version__", "1.20.1")
    with pytest.raises(ImportError, match=r"TRL 1.20.1 is installed"):
        register_tree_attention()
