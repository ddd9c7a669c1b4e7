# SPDX-License-Identifier: Apache-2.0
"""For test_verl_prompts.py: verl's FSDP2 engine and ours over one batch, on one CPU or several.

torchrun --nproc-per-node 1 verl_engine_ranks.py <folder of a model, which takes found-1.pt too>
"""

import os
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry

GROUP, PROMPTS, ANSWERS = 4, 20, 12
LENGTHS = (20, 1, 9, 20)  # tokens of each prompt


def always(value):
    return lambda *_, **__: value


def on_cpu():
    """Has verl, which knows GPUs only, run on CPUs."""
    known = {"device_name": "cpu", "vendor_name": "cpu", "device_module": torch.cpu}
    said = {"is_available": True, "current_device": "cpu", "device_count": 1, "communication_backend_name": "gloo"}
    methods = {name: always(None) for name in PlatformBase.__abstractmethods__}
    methods |= {name: property(always(value)) for name, value in known.items()}
    methods |= {name: always(value) for name, value in {**said, "visible_devices_envvar": "NONE"}.items()}
    PlatformRegistry.register("cpu")(type("OnCpu", (PlatformBase,), methods))
    os.environ["VERL_PLATFORM"] = "cpu"


def batch(**settings):
    """What verl's trainer hands to a worker: prompts padded in front, answers behind; results of tools are masked."""
    from verl.utils.tensordict_utils import get_tensordict
    from verl.workers.utils.padding import left_right_2_no_padding

    draw = torch.Generator().manual_seed(1)
    rows = {"prompts": [], "responses": [], "attention_mask": [], "response_mask": []}
    for size in LENGTHS:
        prompt = torch.randint(4, 64, (size,), generator=draw)
        for _ in range(GROUP):
            answer = torch.randint(4, 64, (int(torch.randint(3, ANSWERS + 1, (), generator=draw)),), generator=draw)
            rows["prompts"].append(torch.nn.functional.pad(prompt, (PROMPTS - size, 0)))
            rows["responses"].append(torch.nn.functional.pad(answer, (0, ANSWERS - len(answer))))
            held = torch.arange(PROMPTS) >= PROMPTS - size, torch.arange(ANSWERS) < len(answer)
            rows["attention_mask"].append(torch.cat(held).long())
            rows["response_mask"].append((held[1] & (torch.arange(ANSWERS) != 1)).long())
    found = {name: torch.stack(each) for name, each in rows.items()}
    found["input_ids"] = torch.cat([found["prompts"], found["responses"]], 1)
    found["position_ids"] = (found["attention_mask"].cumsum(1) - 1).clamp(min=0)
    found["advantages"] = torch.randn(len(found["input_ids"]), 1, generator=draw).expand(-1, ANSWERS).clone()
    found["old_log_probs"] = -4 + 0.3 * torch.randn(found["advantages"].shape, generator=draw)
    given = {
        "temperature": 0.9,
        "use_dynamic_bsz": True,
        "max_token_len_per_gpu": 10_000,
        "micro_batch_size_per_gpu": GROUP,
        "use_remove_padding": True,
        "use_fused_kernels": False,
        "calculate_entropy": True,
        "global_batch_size": len(found["input_ids"]),
        **settings,
    }
    if isinstance(given["temperature"], torch.Tensor):
        found["temperature"] = given.pop("temperature")
    part = len(found["input_ids"]) // dist.get_world_size()
    own = slice(dist.get_rank() * part, (dist.get_rank() + 1) * part)
    return left_right_2_no_padding(get_tensordict({name: each[own] for name, each in found.items()}, given))


def engine(folder, shared, **options):
    from verl.trainer.config import CheckpointConfig
    from verl.workers.config import FSDPEngineConfig, FSDPOptimizerConfig, HFModelConfig
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

    model = HFModelConfig(
        path=folder,
        external_lib="flashmask.integrations.verl_prompts",
        override_config={"attn_implementation": "flashmask" if shared else "eager"},
        enable_gradient_checkpointing=False,
    )
    settled = {"strategy": "fsdp2", "use_torch_compile": False, "mixed_precision": {"param_dtype": "fp32"}}
    from flashmask.integrations.verl_prompts import SharedPromptFSDPEngine

    kind = SharedPromptFSDPEngine if shared else FSDPEngineWithLMHead
    made = kind(
        model,
        FSDPEngineConfig(**settled, **options),
        FSDPOptimizerConfig(lr=0.01, total_training_steps=10),
        CheckpointConfig(),
    )
    made.initialize()
    return made


def results(made, given, without=()):
    """Log-probabilities and entropies [B, L] of the answers, and the tokens of each call of the model."""
    from verl.workers.utils.padding import no_padding_2_padding

    seen = []
    hook = made.module.get_input_embeddings().register_forward_pre_hook(lambda _, args: seen.append(args[0].numel()))
    with made.eval_mode():
        found = made.infer_batch(given.exclude(*without), loss_function=None)["model_output"]
    hook.remove()
    return {name: no_padding_2_padding(found[name], given) for name in ("log_probs", "entropy")}, seen


def update(made, given):
    """The gradients of verl's policy loss."""
    from verl.workers.config import ActorConfig
    from verl.workers.utils.losses import ppo_loss

    config = ActorConfig(strategy="fsdp2", rollout_n=GROUP, ppo_micro_batch_size_per_gpu=1, entropy_coeff=0.01)
    with made.train_mode(zero_grad_on_exit=False):
        made.forward_backward_batch(given, partial(ppo_loss, config))
    found = [each.grad.full_tensor() for each in made.module.parameters()]
    made.optimizer_zero_grad()
    return found


def fused(made, given):
    """Log-probabilities and entropies [B, L] where the model itself returns them, as under verl's fused kernels."""
    from verl.workers.utils.padding import no_padding_2_padding

    inputs, passed = made.prepare_model_inputs(given)
    labels, temperature = inputs.pop("shift_labels"), inputs.pop("temperature")
    logits = made.module(**inputs).logits / temperature
    entropy, log_probs = torch.distributions.Categorical(logits=logits).entropy(), logits.log_softmax(-1)
    output = SimpleNamespace(log_probs=log_probs.gather(-1, labels[..., None])[..., 0], entropy=entropy)
    found = made.prepare_model_outputs(output, passed, given, None)
    return {name: no_padding_2_padding(found[name], given) for name in ("log_probs", "entropy")}


def one_rank(folder):
    from flashmask.integrations.verl_prompts import SharedPromptFSDPEngine

    ours, theirs = engine(folder, True), engine(folder, False)
    rows = len(LENGTHS) * GROUP
    each = torch.linspace(0.5, 1.5, rows)
    found = {"theirs": results(theirs, batch(use_remove_padding=False))[0], "of a call": results(ours, batch())}
    found["of groups"] = results(ours, batch(use_dynamic_bsz=False))
    found["of a budget"] = results(ours, batch(max_token_len_per_gpu=200))
    found["of halves"] = results(ours, batch(max_token_len_per_gpu=70))
    found["padded"] = results(engine(folder, True, pad_to_length=True, pad_to_length_bucket=64), batch())
    found["without prompts"] = results(ours, batch(), without=["prompts"])
    found["fused"] = fused(ours, batch(use_fused_kernels=True))
    found["temperatures"] = results(ours, batch(temperature=each))[0]
    found["temperatures of theirs"] = results(theirs, batch(temperature=each, use_remove_padding=False))[0]
    found["gradients"] = update(ours, batch(max_token_len_per_gpu=200))
    found["gradients of theirs"] = update(theirs, batch(use_remove_padding=False))
    SharedPromptFSDPEngine.invariant = True
    found["invariant"] = results(ours, batch())
    return found


def main(folder):
    torch.set_num_threads(1)
    on_cpu()
    dist.init_process_group("gloo")
    found = one_rank(folder) if dist.get_world_size() == 1 else {"gradients": update(engine(folder, True), batch())}
    if dist.get_rank() == 0:
        torch.save(found, Path(folder, f"found-{dist.get_world_size()}.pt"))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
