# SPDX-License-Identifier: Apache-2.0
"""What a call over several ranks asks of PyTorch: operations, and bytes. One process is either rank of two."""

import weakref
from collections import Counter

import pytest
import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

import flashmask
import flashmask.distributed as fmd
from flashmask import masks
from flashmask.distributed import _dropout, _group, _operators
from flashmask.distributed._make import MAIN, Options, make
from flashmask.distributed._runs import tokens
from flashmask.distributed._sharding import Sharding

RANKS, TOKENS, HEADS, KV_HEADS, DIM = 2, 1024, 4, 2, 16
MASKS = {
    "documents": masks.causal_document([TOKENS // RANKS] * RANKS, TOKENS),
    "window": masks.sliding_window(TOKENS, TOKENS, 200),
    "causal": masks.causal(TOKENS, TOKENS),
}
OF_MODES = ("detach", "lift_fresh")  # which PyTorch asks for when someone listens
COPIES = ("cat", "copy_", "_to_copy", "clone", "add_", "zero_", "zeros", "new_zeros", "zeros_like")


class Heard(TorchDispatchMode):
    """Counts operations, and the bytes of tensors that they made and that are still alive."""

    def __init__(self):
        super().__init__()
        self.names, self.alive = Counter(), {}

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        name = function.overloadpacket.__name__
        self.names[name] += name not in OF_MODES
        given = {each.untyped_storage().data_ptr() for each in arguments if isinstance(each, torch.Tensor)}
        made = function(*arguments, **(keywords or {}))
        for each in made if isinstance(made, (list, tuple)) else [made]:
            storage = each.untyped_storage()
            if storage.data_ptr() not in given and id(storage) not in self.alive:
                self.alive[id(storage)] = storage.nbytes()
                weakref.finalize(storage, self.alive.pop, id(storage))
        return made

    @property
    def copies(self):
        return sum(self.names[name] for name in COPIES)

    @property
    def bytes(self):
        return sum(self.alive.values())


@pytest.fixture
def wire(monkeypatch):
    """The sharding of a rank, in a process without others, and what is called in place of each exchange."""
    exchanges = []
    cpu, handle = torch.device("cpu"), type("Handle", (), {})()
    groups = [_group.Group(f"rank {rank}", rank, RANKS, lambda: handle, cpu) for rank in range(RANKS)]
    monkeypatch.setattr(_group, "checked_alive", lambda handle: handle)
    monkeypatch.setattr(_group, "_groups", {group.name: group for group in groups})
    monkeypatch.setattr(dist, "all_to_all_single", lambda to, given, *splits, group: exchanges.append((to, given)))

    def sharding_of(rank, family, scheme="rows", gradients="reduced"):
        options = Options(HEADS, KV_HEADS, DIM, scheme, "balanced", True, False, gradients, False, 1)
        return Sharding(groups[rank], make({MAIN: MASKS[family]}, [1], groups[rank], options), options)

    sharding_of.exchanges = exchanges
    return sharding_of


def tensors_of(sharding, grad=False):
    """q, k, v and the gradient of o."""
    heads = (HEADS, KV_HEADS, KV_HEADS, HEADS)
    made = [torch.randn(1, sharding._held, count, DIM, dtype=torch.bfloat16) for count in heads]
    return [each.requires_grad_(grad) for each in made[:3]] + made[3:]


def heard_of(sharding):
    """What a forward and a backward ask for under the scheme "rows"."""
    q, k, v, grad_o = tensors_of(sharding)
    where = sharding._tensors[MAIN], sharding._name, 0.0, sharding.deterministic
    forward, backward = Heard(), Heard()
    with torch.no_grad():
        with forward:
            o, lse = _operators._computed(q, k, v, *where, 0)
        with backward:
            _operators._backward(grad_o, None, q, k, v, o, lse, k, v, *where)
    return forward, backward


@pytest.mark.parametrize("rank", range(RANKS))
@pytest.mark.parametrize("family", ["window", "causal"])
@pytest.mark.parametrize("gradients, operations, copies", [
    # One copy into what is sent and one out of it a fetch; one to send gradients, two to add and two to round them.
    ("reduced", (17, 39), (2, 7)),
    # Fetches keys, and rows: q, o and its gradient together, and lse, which the kernel wants in another order.
    ("owner", (17, 56), (2, 7)),
])  # fmt: skip
def test_a_call_asks_for_few_operations(wire, rank, family, gradients, operations, copies):
    heard = heard_of(wire(rank, family, gradients=gradients))
    for each, most, most_copies in zip(heard, operations, copies, strict=True):
        assert each.names.total() <= most, each.names
        assert each.copies <= most_copies, each.names


@pytest.mark.parametrize("gradients", ["reduced", "owner"])
def test_nothing_is_asked_for_where_nothing_is_sent(wire, gradients):
    sharding = wire(0, "documents", gradients=gradients)
    q, k, v, grad_o = tensors_of(sharding, grad=True)
    o = fmd.attention(q, k, v, sharding)
    assert type(o.grad_fn).__name__ == "_AttentionBackward"
    found = torch.autograd.grad(o, (q, k, v), grad_o)
    one = flashmask.attention(q, k, v, masks.causal(q.shape[1], q.shape[1]))
    assert all(map(torch.equal, found, torch.autograd.grad(one, (q, k, v), grad_o)))
    assert not wire.exchanges
    with pytest.raises(ValueError, match=r"^q has shape \[1, 511, 4, 16\]; expected \(batch, 512, 4, head dim\)"):
        fmd.attention(q[:, 1:], k, v, sharding)


def test_calls_go_past_the_dispatcher(wire, monkeypatch):
    """The gradient's too; for both schemes."""

    def refuse(*arguments):
        raise AssertionError("an operator was called by the dispatcher")

    monkeypatch.setattr(_operators, "forward_operator", refuse)
    monkeypatch.setattr(_operators, "backward_operator", refuse)
    for name in ("TO_HEADS", "TO_TOKENS"):
        monkeypatch.setattr(_operators, name, getattr(_operators, name)._replace(operator=refuse))
        monkeypatch.setattr(f"flashmask.distributed._attention.{name}", getattr(_operators, name))
    for scheme in ("rows", "heads"):
        sharding = wire(0, "causal", scheme)
        *leaves, grad_o = tensors_of(sharding, grad=True)
        fmd.attention(*leaves, sharding).backward(grad_o)
        with torch.no_grad():
            fmd.attention(*leaves, sharding)
        with Heard(), pytest.raises(AssertionError, match=r"^an operator was called"):
            fmd.attention(*leaves, sharding)


@pytest.mark.parametrize("rank", range(RANKS))
def test_fetched_keys_and_what_was_sent_end_before_gradients_arrive(wire, rank, monkeypatch):
    sharding = wire(rank, "causal")
    exchange = sharding._locals[MAIN].columns
    heard, alive = Heard(), []

    def at_exchange(to, given, *splits, group):
        alive.append((heard.bytes, to.numel(), given.numel()))

    monkeypatch.setattr(dist, "all_to_all_single", at_exchange)
    q, k, v, grad_o = tensors_of(sharding)
    where = sharding._tensors[MAIN], sharding._name, 0.0, False
    with torch.no_grad():
        o, lse = _operators._computed(q, k, v, *where, 0)
        alive.clear()
        with heard:
            gradients = _operators._backward(grad_o, None, q, k, v, o, lse, k, v, *where)
    per_token = KV_HEADS * DIM
    fetched, given = exchange.tokens - sharding._held, sum(map(tokens, exchange.sends))
    (at_fetch, *of_fetch), (at_return, *of_return) = alive
    assert of_fetch == [fetched * 4 * per_token, given * 4 * per_token]  # k and v, two bytes each
    assert at_fetch == sum(of_fetch)
    assert of_return == [given * 8 * per_token, fetched * 8 * per_token]  # in float32
    partials = exchange.tokens * 8 * per_token
    assert at_return == gradients[0].nbytes + partials + sum(of_return)
    assert heard.bytes == sum(each.nbytes for each in gradients)


def test_dropout_over_ranks_asks_for_the_tiles_of_the_larger_head_dim():
    """Values of 160 dims make a GPU take kernels of 192, whose tiles have 192 rows, beside 128 dims of q and k too."""
    runs = [[(0, 384)], [(384, 512)], [(512, 1024)]]
    with FakeTensorMode():
        q, v = (torch.empty(1, 512, 1, dim, device="cuda") for dim in (128, 160))
        _dropout.check_runs(runs, q, q)
        with pytest.raises(ValueError, match=r"tokens from 512 on.* multiples of 384.*aligned=True and head_dim=160"):
            _dropout.check_runs(runs, q, v)
    assert _dropout.tile_of("cuda", 160) == 384
