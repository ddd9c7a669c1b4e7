# SPDX-License-Identifier: Apache-2.0
"""long_context() on models whose layers PyTorch's FSDP2 shards over processes: the gradients of one process."""

import copy
import time

import pytest

torch = pytest.importorskip("torch", reason="flashmask.training is for torch")
pytest.importorskip("transformers", reason="long_context() takes its models")

from torch import distributed, multiprocessing  # noqa: E402
from training_models import batch, tiny  # noqa: E402

from flashmask.training import long_context  # noqa: E402

PROCESSES = 2


def shard(model, layers_a_unit):
    from torch.distributed.fsdp import fully_shard

    mesh = distributed.init_device_mesh("cpu", (PROCESSES,))
    layers = list(model.model.layers)
    for first in range(0, len(layers), layers_a_unit):
        fully_shard(layers[first : first + layers_a_unit], mesh=mesh)
    fully_shard(model, mesh=mesh)


def train(rank, port, keep):
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=PROCESSES)
    model = tiny()
    plain = copy.deepcopy(model)
    shard(model, layers_a_unit=keep)  # what runs again together is gathered together
    with long_context(model, chunk=33, keep=keep, offload=True):
        model(**batch(seed=rank)).loss.backward()
    sum(plain(**batch(seed=each)).loss / PROCESSES for each in range(PROCESSES)).backward()
    for found, expected in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(found.grad.full_tensor(), expected.grad, atol=1e-6, rtol=1e-4)
    distributed.destroy_process_group()
    # Threads of Gloo whose group a library still holds (FSDP does) must let go of their tensors before the interpreter
    # ends, or they abort the process.
    time.sleep(0.5)


@pytest.mark.slow
@pytest.mark.skipif(not distributed.is_available(), reason="this torch has no torch.distributed")
@pytest.mark.parametrize("keep", [1, 2])
def test_sharded_layers_learn_the_same(keep):
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    multiprocessing.spawn(train, (port, keep), nprocs=PROCESSES)
