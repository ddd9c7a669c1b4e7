# SPDX-License-Identifier: Apache-2.0
"""A rank of test_torchtitan.py: trains a model of torchtitan with context parallelism by torchtitan's own functions.

torchrun --nproc-per-node <ranks> torchtitan_ranks.py <folder for rank 0's losses> <model> <load balancer or "">
  <"varlen" or "flex">
"""

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torchtitan.config.override import OverrideConfig, apply_overrides
from torchtitan.distributed.context_parallel import apply_cp_to_forward, prepare_context_parallel_input
from torchtitan.models import gpt_oss, llama3, qwen3

PACKAGE = "flashmask.integrations.torchtitan."
OVERRIDES = {"varlen": "flashmask_attention", "flex": "flashmask_flex_attention"}
MODELS = {"gpt_oss": gpt_oss, "llama3": llama3, "qwen3": qwen3}
STEPS, TOKENS = 20, 256
DOCUMENTS = [[100, 3, 153], [256]]


torch._dynamo.config.disable = True  # torchtitan compiles create_block_mask(), which takes longer than all steps


def built(name, backend):
    spec = MODELS[name].model_registry("debugmodel", attn_backend=backend)
    apply_overrides(OverrideConfig(imports=[PACKAGE + OVERRIDES[backend]]), spec)
    spec.model.layers = spec.model.layers[:2]
    torch.manual_seed(0)
    model = spec.model.build()
    model.init_states()
    if name == "gpt_oss":
        for layer in model.layers.values():
            layer.moe = torch.nn.Identity()  # its experts take bfloat16 only
    return model


def main(folder, name, balancer, backend):
    rank, ranks = (int(os.environ.get(name, one)) for name, one in (("RANK", "0"), ("WORLD_SIZE", "1")))
    torch.set_num_threads(1)
    model = built(name, backend)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    mesh = None
    if ranks > 1:
        dist.init_process_group("gloo")
        mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("cp",))
        apply_cp_to_forward([layer.attention.inner_attention for layer in model.layers.values()], mesh)
    positions = torch.stack([torch.cat([torch.arange(length) for length in row]) for row in DOCUMENTS])
    mask_key = "basic_mask" if name == "gpt_oss" else None
    draw = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, 2000, (2, TOKENS + 1), generator=draw)
    losses = []
    for _ in range(STEPS):
        inputs, labels = tokens[:, :-1], tokens[:, 1:]
        extra = {"positions": positions, "attention_masks": model.get_attention_masks(positions)}
        if mesh is not None:
            inputs, labels, extra = prepare_context_parallel_input(
                *(inputs, labels, extra, mesh, torch.device("cpu"), balancer or None, mask_key)
            )
        logits = model(inputs, **extra)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), reduction="sum")
        loss = loss / (2 * TOKENS)
        optimizer.zero_grad()
        loss.backward()
        total = loss.detach().clone()
        if mesh is not None:
            for each in (total, *(p.grad for p in model.parameters() if p.grad is not None)):
                dist.all_reduce(each)
        optimizer.step()
        losses.append(total.item())
    if rank == 0:
        Path(folder, f"{ranks}.json").write_text(json.dumps(losses))
    if mesh is not None:
        dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
