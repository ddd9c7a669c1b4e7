# SPDX-License-Identifier: Apache-2.0
"""flashmask.training on a GPU: bfloat16, page-locked memory, announcements that hold, steps that repeat to the bit."""

import copy

import pytest

torch = pytest.importorskip("torch", reason="flashmask.training is for torch")
transformers = pytest.importorskip("transformers", reason="long_context() takes its models")

from cuda_device import needs_gpu  # noqa: E402
from training_models import KINDS, batch, in_double, loss_and_gradients, tiny  # noqa: E402

from flashmask.training import (  # noqa: E402
    HostMemory,
    Offload,
    linear_cross_entropy,
    linear_log_probs,
    long_context,
)
from flashmask.training._host_memory import _lock  # noqa: E402
from flashmask.training._loss import head_memory  # noqa: E402

pytestmark = needs_gpu

LENGTHS = (700, 1, 331)
SIZES = {
    "hidden_size": 256,
    "intermediate_size": 384,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
}


def on_gpu(kind="Llama", **options):
    return tiny(kind, **{**SIZES, **options}).to("cuda", torch.bfloat16)


def given(lengths=LENGTHS, seed=0):
    return {name: each.cuda() for name, each in batch(lengths, seed=seed).items()}


@pytest.fixture
def deterministic(monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("options", [{}, {"keep": 2, "offload": True}, {"hold_attention": True}], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_as_near_as_those_of_plain_autograd(kind, options):
    model, data = on_gpu(kind), given()
    exact = loss_and_gradients(in_double(model), data)
    plain = loss_and_gradients(copy.deepcopy(model), data)
    with long_context(model, chunk=250, **options):
        found = loss_and_gradients(model, data)
    assert found[0].item() == pytest.approx(exact[0].item(), abs=max(1e-3, 2 * abs(plain[0] - exact[0]).item()))
    for name, reference in exact[1].items():
        ours, theirs = ((each[1][name].double() - reference).norm() / reference.norm() for each in (found, plain))
        assert ours <= 1.5 * theirs + 1e-3, name


@pytest.mark.parametrize("options", [{"offload": True}, {"offload": 1}, {"keep": 2}, {"hold_attention": True}], ids=str)
def test_where_inputs_wait_changes_no_bit(deterministic, options):
    model, data = on_gpu(num_hidden_layers=6), given()
    with long_context(model, chunk=250):
        expected = loss_and_gradients(model, data)
    with long_context(model, chunk=250, **options):
        for _ in range(3):
            found = loss_and_gradients(model, data)
    assert torch.equal(found[0], expected[0])
    assert all(torch.equal(found[1][name], each) for name, each in expected[1].items())


def test_a_hundred_steps_repeat_to_the_bit(deterministic):
    def trained():
        model = on_gpu()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        losses = []
        with long_context(model, chunk=250, keep=2, offload=True):
            for step in range(100):
                optimizer.zero_grad()
                loss = model(**given(seed=step % 4)).loss
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
        return losses, [each.detach() for each in model.parameters()]

    first, again = trained(), trained()
    assert first[0] == again[0] and first[0][-1] < first[0][0]
    assert all(map(torch.equal, first[1], again[1]))


def test_copies_run_beside_work_that_reuses_memory():
    """Many tensors go out and come back while products run; each is what it was."""
    work = torch.randn(2048, 2048, device="cuda")
    with HostMemory(page_locked=True) as memory:
        offload = Offload(memory)
        sums, kept = [], []
        for number in range(20):
            tensor = torch.full((4 << 20,), float(number), device="cuda") + work[0, 0] * 0
            sums.append(tensor.double().sum())
            kept.append(offload.keep(tensor))
            del tensor
            work = (work @ work).clamp_(-1, 1)
        for each, expected in zip(reversed(kept), reversed(sums), strict=True):
            back = each.take()
            offload.fetch_next()
            work = (work @ work).clamp_(-1, 1)
            assert back.double().sum() == expected


def test_memory_that_cannot_be_locked_is_told_once():
    piece = torch.empty(1 << 20, dtype=torch.uint8)
    _lock(piece)
    with pytest.raises(MemoryError, match="cudaHostRegister says"):
        _lock(piece)
    assert torch.ones(3, device="cuda").sum() == 3
    torch.cuda.cudart().cudaHostUnregister(piece.data_ptr())


def test_page_locked_memory_is_given_back():
    model, data = on_gpu(), given()
    with long_context(model, offload=True) as held:
        model(**data).loss.backward()
        pieces = list(held.host_memory._held.values())
        assert len(pieces) == 3 and all(each.is_pinned() for each in pieces)
    assert held.host_memory.bytes == 0
    assert not any(each.is_pinned() for each in pieces)


def test_page_locked_memory_is_given_back_when_a_step_is_interrupted():
    model, data = on_gpu(), given()
    pieces = []

    def interrupted():
        with long_context(model, offload=True) as held:
            loss = model(**data).loss
            pieces.extend(held.host_memory._held.values())
            raise KeyboardInterrupt(loss)

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert len(pieces) == 3
    assert not any(each.is_pinned() for each in pieces)


@pytest.mark.parametrize("options", [{}, {"offload": True}, {"keep": 2}, {"hold_attention": True}], ids=str)
def test_a_step_takes_the_memory_that_was_announced(options):
    sizes = {"hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 32, "num_key_value_heads": 8}
    with torch.device("cuda"):
        model = tiny(**{**SIZES, **sizes, "num_hidden_layers": 8, "vocab_size": 32000}).to(torch.bfloat16)
    data = given((20000, 12768))
    with long_context(model, chunk=2048, **options) as held:
        announced = held.memory(32768, batch=2)
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        model(**data).loss.backward()
        taken = torch.cuda.max_memory_allocated() - before
        assert held.host_memory.bytes == announced.host
    assert 0.75 * announced.card <= taken <= announced.card, f"{taken / 2**30:.2f} of {announced}"


def test_losses_of_log_probs_take_the_memory_that_was_announced():
    rows = torch.randn(9000, 256, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    weight = torch.randn(32000, 256, device="cuda", dtype=torch.bfloat16)
    labels = torch.randint(32000, (9000,), device="cuda")
    announced, before = head_memory(weight, 9000), torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    linear_log_probs(rows, weight, labels).sum().backward()
    taken = torch.cuda.max_memory_allocated() - before - rows.nbytes
    assert 0.9 * announced <= taken <= 1.01 * announced, f"{taken / 2**30:.2f} of {announced / 2**30:.2f} GiB"


def test_says_before_a_step_what_is_missing():
    model = on_gpu()
    with (
        long_context(model) as held,
        pytest.raises(MemoryError, match=r"a step takes .* GiB on the card, which has"),
    ):
        held.require_memory(1 << 30)


@pytest.mark.parametrize("learns", [True, False])
@pytest.mark.parametrize("softcap", [None, 2.5])
@pytest.mark.parametrize("chunk", [700, None])  # None: Liger's kernel, where it is installed
def test_loss_in_bfloat16(chunk, softcap, learns):
    torch.manual_seed(0)
    hidden, weight = torch.randn(3000, 256, device="cuda"), torch.randn(5000, 256, device="cuda") / 16
    labels = torch.randint(5000, (3000,), device="cuda")
    labels[::3] = -100
    leaves = [hidden.bfloat16().requires_grad_(), weight.bfloat16().requires_grad_(learns)]
    doubles = [each.detach().double().requires_grad_() for each in leaves]

    def by_torch(hidden, weight, dtype):
        logits = hidden @ weight.mT
        logits = logits if softcap is None else softcap * torch.tanh(logits / softcap)
        return torch.nn.functional.cross_entropy(logits.to(dtype), labels)

    exact, plain = by_torch(*doubles, torch.float64), by_torch(*leaves, torch.float32)
    found = linear_cross_entropy(*leaves, labels, chunk=chunk, softcap=softcap)
    assert abs(found - exact) <= 2 * abs(plain - exact) + 1e-4
    losses = zip((exact, plain, found), (doubles, leaves, leaves), strict=True)
    of = [torch.autograd.grad(loss, each[: 1 + learns]) for loss, each in losses]
    for reference, theirs, ours in zip(*of, strict=True):
        assert (ours - reference).norm() <= 2 * (theirs - reference).norm() + 1e-4 * reference.norm()
