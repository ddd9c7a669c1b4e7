# SPDX-License-Identifier: Apache-2.0
"""OpenRLHF's Actor with each prompt computed once, against its own on padded rows, under its own losses."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="OpenRLHF runs on torch")
pytest.importorskip("openrlhf", reason="its Actor is what is tested: scripts/test-trainers openrlhf")

import openrlhf_on_cpu  # noqa: E402  before OpenRLHF
from openrlhf.models.actor import Actor  # noqa: E402
from openrlhf.models.loss import PolicyLoss, aggregate_loss  # noqa: E402
from openrlhf.models.utils import compute_approx_kl  # noqa: E402
from openrlhf.trainer.ppo_utils.experience import Experience  # noqa: E402
from transformers import AutoModelForCausalLM, Gemma2Config, LlamaConfig, LlamaForCausalLM  # noqa: E402

from flashmask.integrations import openrlhf_prompts  # noqa: E402
from flashmask.integrations._openrlhf_actor import SharedPromptActor, WholeCallReplayBuffer  # noqa: E402

GROUP, PROMPTS, ANSWER = 4, (24, 1, 9), 12
ROWS = GROUP * len(PROMPTS)
SIZES = {
    "vocab_size": 62,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}

pytestmark = pytest.mark.usefixtures("one_thread", "eager")


@pytest.fixture(scope="module")
def eager():
    """OpenRLHF compiles its entropies, which takes longer here than all else."""
    with torch.compiler.set_stance("force_eager"):
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SIZES, pad_token_id=0))
    for weight in model.parameters():
        torch.nn.init.normal_(weight, mean=float(weight.ndim == 1), std=0.2)
    made = str(tmp_path_factory.mktemp("llama"))
    model.save_pretrained(made)
    return made


def actor(kind, folder, attention, **options):
    """An actor in float32, which OpenRLHF does not offer."""
    return kind(folder, attn_implementation=attention, temperature=0.7, **options).float()


@pytest.fixture(scope="module")
def batch():
    """What a step takes: rows padded on the right, answers with a word of a tool inside, one of them not trained."""
    generator = torch.Generator().manual_seed(0)
    rows, actions = [], []
    for size in PROMPTS:
        prompt = torch.randint(2, 62, (size,), generator=generator)
        for _ in range(GROUP):
            answer = torch.randint(
                2, 62, (int(torch.randint(4, ANSWER, (), generator=generator)),), generator=generator
            )
            rows.append(torch.cat([prompt, answer]))
            actions.append(torch.cat([torch.zeros(size), torch.tensor([1.0, 1, 0]), torch.ones(len(answer) - 3)]))
    actions[5].zero_()

    def padded(tensors):
        return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True)

    action_mask = padded(actions)[:, 1:]
    return {
        "sequences": padded(rows),
        "action_mask": action_mask,
        "attention_mask": padded([torch.ones_like(each) for each in rows]),
        "advantages": torch.randn(action_mask.shape, generator=generator),
        "noise": 0.3 * torch.randn(2, *action_mask.shape, generator=generator),
    }


def scored(policy, batch):
    names = ("sequences", "action_mask", "attention_mask")
    return policy(*(batch[name] for name in names), return_output=True, return_entropy=True)


def losses(policy, batch, old):
    """Log-probabilities, entropies, and OpenRLHF's losses of an update: policies of two kinds, KL and entropies."""
    log_probs, output = scored(policy, batch)
    mask = batch["action_mask"]
    entropy = output.entropy[:, -mask.shape[1] :]
    before, reference = (old + each * mask for each in batch["noise"])
    kl = compute_approx_kl(log_probs, reference, log_probs_old=before, kl_estimator="k3")
    found = [
        PolicyLoss(policy_loss_type=kind)(log_probs, before, batch["advantages"], mask)[0] for kind in ("ppo", "gspo")
    ]
    return log_probs, entropy * mask, [*found, aggregate_loss(kl, mask), aggregate_loss(entropy, mask)]


@pytest.fixture(
    scope="module", params=[{}, {"lora_rank": 4, "target_modules": ["q_proj", "v_proj"]}], ids=["full", "lora"]
)
def actors(request, folder):
    made = []
    for kind, attention in ((SharedPromptActor, "flashmask"), (Actor, "eager")):
        torch.manual_seed(3)
        made.append(actor(kind, folder, attention, **request.param))
        for name, weight in made[-1].named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(weight, std=0.2)
    return made


def test_losses_and_gradients_are_those_of_openrlhf(actors, batch):
    with torch.no_grad():
        old = scored(actors[1], batch)[0]
    ours, theirs = (losses(each, batch, old) for each in actors)
    for found, expected in zip(ours[:2], theirs[:2], strict=True):
        assert expected.abs().max() > 1
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    for found, expected in zip(ours[2], theirs[2], strict=True):
        torch.testing.assert_close(found, expected, rtol=2e-6, atol=2e-7)
    gradients = []
    for policy, (*_, found) in zip(actors, (ours, theirs), strict=True):
        learned = [weight for weight in policy.parameters() if weight.requires_grad]
        gradients.append(torch.autograd.grad(sum(found), learned))
    largest = max(each.norm() for each in gradients[1])
    assert largest > 0
    for one, other in zip(*gradients, strict=True):
        assert (one - other).norm() <= 1e-5 * largest


def test_a_prompt_passes_through_the_model_once(folder, batch):
    seen = []
    policy = actor(SharedPromptActor, folder, "flashmask")
    policy.model.get_input_embeddings().register_forward_pre_hook(lambda _, given: seen.append(given[0].shape))
    scored(policy, batch)
    held, answered = batch["attention_mask"].sum(1).int().tolist(), batch["action_mask"].any(1).tolist()
    counted = sum(size - 1 for size in PROMPTS)
    counted += sum(
        size - PROMPTS[row // GROUP] + 1 for row, (size, some) in enumerate(zip(held, answered, strict=True)) if some
    )
    assert seen == [(1, counted)]


def test_a_call_for_logits_is_that_of_openrlhf(actors, batch):
    names = ("sequences", "attention_mask")
    ours, theirs = (each(**{name: batch[name] for name in names}, return_output=True).logits for each in actors)
    held = batch["attention_mask"].bool()
    torch.testing.assert_close(ours[held], theirs[held], rtol=1e-5, atol=1e-5)


@pytest.fixture
def loader(batch, monkeypatch):
    """Micro-batches of a group each, from experiences of two, as OpenRLHF shuffles them."""
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    buffer = WholeCallReplayBuffer(GROUP, cpu_offload=False)
    names = ("sequences", "action_mask", "attention_mask")
    for begin in range(0, ROWS, 2 * GROUP):
        part = {name: batch[name][begin : begin + 2 * GROUP] for name in names}
        buffer.append(Experience(**part, index=None, info={}))
    return torch.utils.data.DataLoader(
        buffer, buffer.sample_batch_size, shuffle=True, drop_last=True, collate_fn=buffer.collate_fn
    )


def test_a_shuffle_keeps_micro_batches_whole(loader, batch):
    prompts = [each.sequences[:, 0].tolist() for each in loader]
    expected = batch["sequences"][:, 0].view(-1, GROUP).tolist()
    assert sorted(prompts) == sorted(expected) and all(len(set(each)) == 1 for each in prompts)


def test_a_micro_batch_has_the_bits_of_the_call_that_scored_it(loader, folder, batch):
    """So that ratios are exactly 1 before an update, where both calls take as many rows."""
    policy = actor(SharedPromptActor, folder, "flashmask")
    names = ("sequences", "action_mask", "attention_mask")
    before = {}
    for begin in range(0, ROWS, GROUP):
        rows = [batch[name][begin : begin + GROUP] for name in names]
        with torch.no_grad():
            before[rows[0][0, 0].item()] = policy(*rows)
    for each in loader:
        found = policy(*(getattr(each, name) for name in names))
        assert found.requires_grad and torch.equal(found, before[each.sequences[0, 0].item()][:, : found.shape[1]])


def test_workers_of_ray_take_them(tmp_path):
    script = tmp_path / "workers.py"
    script.write_text(
        "import ray\n"
        "from flashmask.integrations import openrlhf_prompts\n"
        "openrlhf_prompts.before_workers()\n"
        "openrlhf_prompts.with_hook(ray.init)(num_cpus=1, num_gpus=0, include_dashboard=False, log_to_driver=False,\n"
        "    runtime_env={'env_vars': {'NCCL_DEBUG': 'WARN'}})\n"
        "@ray.remote\n"
        "def names():\n"
        "    from openrlhf.trainer.ray import launcher, ppo_actor, ppo_critic\n"
        "    taken = [launcher.Actor, ppo_actor.Actor, ppo_actor.NaiveReplayBuffer, ppo_critic.NaiveReplayBuffer]\n"
        "    return [each.__name__ for each in taken]\n"
        "print(*ray.get(names.remote()))\n"
    )
    path = os.pathsep.join([openrlhf_on_cpu.FOLDER, *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path, "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    done = subprocess.run(
        [sys.executable, script], check=False, capture_output=True, text=True, env=environment, timeout=120
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split()[-4:] == ["SharedPromptActor"] * 2 + ["WholeCallReplayBuffer"] * 2


def test_a_hook_of_others_is_not_replaced():
    with pytest.raises(ValueError, match="runtime_env has a worker_process_setup_hook already; call before_workers"):
        openrlhf_prompts.with_hook(lambda **_: None)(runtime_env={"worker_process_setup_hook": "theirs.hook"})


def test_what_it_cannot_serve_is_refused(folder, batch, tmp_path):
    with pytest.raises(ValueError, match=r"packing_samples is True: .* leave out --ds.packing_samples and --train.dyn"):
        actor(SharedPromptActor, folder, "flashmask", packing_samples=True)
    with pytest.raises(ValueError, match="attn_implementation='sdpa', under which answers to one prompt would see"):
        actor(SharedPromptActor, folder, "sdpa")
    policy = actor(SharedPromptActor, folder, "flashmask")
    with pytest.raises(ValueError, match="ring attention spreads rows over ranks"):
        policy(batch["sequences"], batch["action_mask"], batch["attention_mask"], ring_attn_group=SimpleNamespace())
    with pytest.raises(ValueError, match=r"--actor\.aux_loss_coef is set: the loss that balances experts"):
        scored(policy, batch)[1].aux_loss  # noqa: B018
    capped = Gemma2Config(**SIZES, head_dim=8, final_logit_softcapping=3.0)
    AutoModelForCausalLM.from_config(capped).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="Gemma2ForCausalLM changes logits after its head"):
        scored(actor(SharedPromptActor, str(tmp_path), "flashmask"), batch)
