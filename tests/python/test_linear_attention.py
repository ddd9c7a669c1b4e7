# SPDX-License-Identifier: Apache-2.0
"""linear_attention() against the quadratic form of what the mask sees, differentiated by torch in double precision."""

import numpy as np
import pytest
import torch

import flashmask
from flashmask import masks
from flashmask._torch import linear

pytestmark = pytest.mark.kernels


def visible(mask):
    return torch.from_numpy(mask.to_dense()[0, 0])


def quadratic(q, k, v, log_forget, log_input, see, normalize, scale=None):
    """The definition, one batch entry after the other: gates of the tokens behind j that i sees and that see j."""
    group = v.shape[2] // q.shape[2]
    q, k = (t.repeat_interleave(group, 2) for t in (q, k))
    scale = q.shape[3] ** -0.5 if scale is None else scale
    path = see[:, :, None] & see[None, :, :]  # [i, t, j]: i sees t, and t sees j
    path = path & ~torch.eye(len(see), dtype=torch.bool)[None]  # without t = j itself
    sums = torch.einsum("itj,bth->bhij", path.double(), log_forget) + log_input.permute(0, 2, 1)[:, :, None]
    weights = torch.where(see, sums, -torch.inf).exp() * scale * torch.einsum("bihd,bjhd->bhij", q, k)
    o = torch.einsum("bhij,bjhc->bihc", weights, v)
    if not normalize:
        return o
    return o / weights.sum(-1).abs().clamp(min=1).transpose(1, 2)[..., None]


def inputs(length, batch=2, heads=4, key_heads=2, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator).to(dtype)

    q, k = normal(batch, length, key_heads, 16), normal(batch, length, key_heads, 16)
    v = normal(batch, length, heads, 24)
    log_forget = -torch.nn.functional.softplus(-2 - normal(batch, length, heads).float())
    return q, k, v, log_forget, normal(batch, length, heads).float() - 1


def close(a, b, dtype):
    bound = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}[dtype]
    assert (a.double() - b).abs().max() <= bound * b.abs().max()


MASKS = {
    "causal": None,
    "documents": masks.causal_document([30, 1, 70], 110),
    "shared question": masks.shared_question([(40, [30, 1, 20])], 100),
}


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", MASKS)
def test_values_and_gradients_are_those_of_the_definition(name, dtype, normalize):
    mask = MASKS[name]
    length = 90 if mask is None else mask.shape.columns
    leaves = [t.requires_grad_() for t in inputs(length, dtype=dtype)]
    doubles = [t.detach().double().requires_grad_() for t in leaves]
    o = flashmask.linear_attention(*leaves, mask, normalize=normalize)
    expected = quadratic(*doubles, visible(masks.causal(length) if mask is None else mask), normalize)
    assert o.dtype is dtype
    close(o, expected, dtype)
    grad = torch.randn(o.shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    found = torch.autograd.grad(o, leaves, grad)
    for a, b in zip(found, torch.autograd.grad(expected, doubles, grad.double()), strict=True):
        close(a, b, dtype)


def test_plain_retnet_and_mamba_are_cases():
    q, k, v, *_ = inputs(70)
    zeros, see = torch.zeros(2, 70, 4), visible(masks.causal(70))
    double = [t.double() for t in (q, k, v)]
    close(flashmask.linear_attention(q, k, v), quadratic(*double, zeros.double(), zeros, see, False), torch.float32)
    decay = torch.log(1 - 2.0 ** -torch.arange(5, 9)).requires_grad_()
    o = flashmask.linear_attention(q, k, v, decay)
    of_double = decay.detach().double().requires_grad_()
    expected = quadratic(*double, of_double.expand(2, 70, 4), zeros, see, False)
    close(o, expected, torch.float32)
    close(torch.autograd.grad(o.sum(), decay)[0], torch.autograd.grad(expected.sum(), of_double)[0], torch.float32)
    delta = torch.rand(2, 70, 4)  # Mamba-2: h = exp(-delta A) h + delta k v, y = q h
    o = flashmask.linear_attention(q, k, v * delta[..., None], -0.3 * delta, scale=1.0)
    state, outputs = torch.zeros(2, 4, 16, 24), []
    for t in range(70):
        key, query = (x[:, t].repeat_interleave(2, 1) for x in (k, q))
        step = delta[:, t, :, None, None]
        state = torch.exp(-0.3 * step) * state + step * key[..., None] * v[:, t, :, None]
        outputs.append((query[..., None] * state).sum(2))
    torch.testing.assert_close(o, torch.stack(outputs, 1), atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("normalize", [False, True])
def test_a_sequence_can_be_cut(normalize):
    leaves = [t.requires_grad_() for t in inputs(130)]
    whole, last = flashmask.linear_attention(*leaves, normalize=normalize, output_final_state=True)
    parts = [[t[:, a:b] for t in leaves] for a, b in ((0, 50), (50, 130))]
    first, state = flashmask.linear_attention(*parts[0], normalize=normalize, output_final_state=True)
    second, end = flashmask.linear_attention(
        *parts[1], normalize=normalize, initial_state=state, output_final_state=True
    )
    torch.testing.assert_close(torch.cat([first, second], 1), whole, atol=2e-5, rtol=1e-4)
    torch.testing.assert_close(end.state, last.state, atol=2e-5, rtol=1e-4)
    assert end.state.shape == (2, 4, 16, 24) and (end.normalizer is None) != normalize

    def loss(o, last):
        return o.square().sum() + last.state.square().sum()

    expected = torch.autograd.grad(loss(whole, last), leaves)
    for a, b in zip(torch.autograd.grad(loss(torch.cat([first, second], 1), end), leaves), expected, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5 * float(b.abs().max()), rtol=1e-4)


def test_states_of_a_tree_come_out_per_node():
    q, k, v, log_forget, log_input = inputs(100, batch=1)
    mask = MASKS["shared question"]
    _, last = flashmask.linear_attention(q, k, v, log_forget, log_input, mask, output_final_state=True)
    assert last.state.shape[0] == len(flashmask.nodes(mask)) == 4
    path = [*range(40), *range(71, 91)]  # the prompt and its last answer
    alone = [t[:, path] for t in (q, k, v, log_forget, log_input)]
    _, expected = flashmask.linear_attention(*alone, output_final_state=True)
    torch.testing.assert_close(last.state[-1], expected.state[0], atol=1e-5, rtol=1e-4)


def test_row_indices_and_masks_are_compiled_whole():
    q, k, v, log_forget, log_input = inputs(96)
    rows = masks.from_cu_seqlens(torch.tensor([0, 30, 96], dtype=torch.int32), 96)
    mask = masks.causal_document([30, 66], 96)

    def run(mask, *tensors):
        return flashmask.linear_attention(*tensors, mask, normalize=True)

    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    for given in (rows, mask):
        gradients = []
        for function in (run, compiled):
            leaves = [t.clone().requires_grad_() for t in (q, k, v, log_forget, log_input)]
            o = function(given, *leaves)
            gradients.append([o, *torch.autograd.grad(o.square().sum(), leaves)])
        for a, b in zip(*gradients, strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize("nodes", [0, 2], ids=["without states", "with states"])
def test_operators_pass_torchs_own_checks(nodes):
    q, k, v, log_forget, log_input = (t.requires_grad_() for t in inputs(40))
    arguments = q, k, v, log_forget, log_input, None, None, None, None, True, 0.0, True, nodes
    torch.library.opcheck(torch.ops.flashmask.linear_forward.default, arguments)


def test_numpy_arrays_give_the_same_bits():
    tensors = inputs(110)
    mask = MASKS["documents"]
    o, state = flashmask.linear_attention(*tensors, mask, normalize=True, output_final_state=True)
    arrays = [t.numpy() for t in tensors]
    of_arrays, its = flashmask.linear_attention(*arrays, mask, normalize=True, output_final_state=True)
    assert isinstance(of_arrays, np.ndarray)
    np.testing.assert_array_equal(of_arrays, o.numpy())
    np.testing.assert_array_equal(its.state, state.state.numpy())
    first, its = flashmask.linear_attention(*arrays[:3], np.log(np.full(4, 0.9)), output_final_state=True)
    second = flashmask.linear_attention(*arrays[:3], np.log(np.full(4, 0.9)), initial_state=its)
    decay = torch.log(torch.full((4,), 0.9, dtype=torch.float64)).float()
    expected = flashmask.linear_attention(*(torch.cat([t, t], 1) for t in tensors[:3]), decay)
    np.testing.assert_allclose(np.concatenate([first, second], 1), expected.numpy(), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        ({"mask": masks.sliding_window(40, 5)}, ValueError, r"column 0|docs/linear.md"),
        ({"mask": "causal"}, TypeError, "mask"),
        ({"k": torch.zeros(2, 40, 2, 8)}, ValueError, r"k has shape \[2, 40, 2, 8\]; expected \[2, 40, 2, 16\]"),
        (
            {"v": torch.zeros(2, 40, 3, 8), "log_forget": None, "log_input": None},
            ValueError,
            "heads is 3; expected a multiple of key_heads, which is 2",
        ),
        ({"log_forget": torch.zeros(3)}, ValueError, r"log_forget has shape \[3\]; expected \[2, 40, 4\], or \[4\]"),
        ({"log_input": torch.zeros(4)}, ValueError, r"log_input has shape \[4\]; expected \[2, 40, 4\]"),
        ({"initial_state": (torch.zeros(2, 4, 16, 24), None, None), "normalize": True}, ValueError, "no normalizer"),
        ({"initial_state": (torch.zeros(3, 4, 16, 24), None, None)}, ValueError, r"\(3, 4, 16, 24\); expected \(2, "),
        ({"initial_state": 3}, TypeError, "initial_state is int 3"),
        ({"q": torch.zeros(2, 40, 2, 16, dtype=torch.float64)}, TypeError, "expected one dtype"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(change, error, said):
    given = dict(zip(("q", "k", "v", "log_forget", "log_input"), inputs(40), strict=True))
    with pytest.raises(error, match=said):
        flashmask.linear_attention(**{**given, **change})


@pytest.mark.parametrize("loss", [torch.sum, lambda o: o.square().sum()], ids=["of a sum", "of squares"])
def test_second_derivatives_are_refused(loss):
    leaves = [t.requires_grad_() for t in inputs(20)]
    first = torch.autograd.grad(loss(flashmask.linear_attention(*leaves)), leaves, create_graph=True)
    refused = pytest.raises(NotImplementedError, match="linear_attention is differentiable once; write its recurrence")
    for leaf, gradient in zip(leaves, first, strict=True):
        with refused:
            torch.autograd.grad(gradient.square().sum(), leaf, retain_graph=True)


def test_what_others_compute_is_refused_by_name():
    leaves = inputs(20)
    with pytest.raises(NotImplementedError, match="float64: torch tensors"):
        flashmask.linear_attention(*(t.detach().double().numpy() for t in leaves))
    states = torch.zeros(3, 4, 16, 24), None, None
    with pytest.raises(ValueError, match=r"initial_state has shapes .*\[3, 4, 16, 24\].*expected .*\[2, 4, 16, 24\]"):
        flashmask.linear_attention(*(t.double() for t in leaves), initial_state=states)


@pytest.mark.parametrize("normalize", [False, True])
def test_float64_is_exact_enough_for_gradcheck(normalize):
    mask = masks.shared_question([(5, [3, 2])], 11)
    given = [t[:, :11, :, :3].double() if t.ndim == 4 else t[:, :11].double() for t in inputs(20, batch=1)]
    given[4] = -given[4].abs()  # states come out without a scale, which has no gradient
    leaves = [t.contiguous().requires_grad_() for t in given]

    def run(*tensors):
        o, last = flashmask.linear_attention(*tensors, mask, normalize=normalize, scale=0.5, output_final_state=True)
        return o, last.state

    assert run(*leaves)[0].dtype is torch.float64
    assert torch.autograd.gradcheck(run, leaves)
    expected = quadratic(*leaves, visible(mask), normalize, 0.5)
    torch.testing.assert_close(run(*leaves)[0][:, :10], expected[:, :10], rtol=1e-12, atol=1e-12)
    floats = flashmask.linear_attention(*(t.float() for t in leaves), mask, normalize=normalize, scale=0.5)
    torch.testing.assert_close(floats, run(*leaves)[0].float(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("cast", [torch.bfloat16, torch.float16])
def test_autocast_casts_q_k_and_v(cast):
    given = inputs(40)
    mask = masks.causal_document([30, 8], 40)
    leaves = [t.clone().requires_grad_() for t in given]
    narrow = [t.to(cast if t.ndim == 4 else t.dtype).requires_grad_() for t in given]
    with torch.autocast("cpu", dtype=cast):
        o, states = flashmask.linear_attention(*leaves, mask, output_final_state=True)
        mixed = flashmask.linear_attention(narrow[0], *leaves[1:], mask)
        double = flashmask.linear_attention(*(t.double() for t in given), mask)
    assert (o.dtype, states.state.dtype, double.dtype) == (cast, torch.float32, torch.float64)
    expected = flashmask.linear_attention(*narrow, mask)
    assert torch.equal(o, expected)
    assert torch.equal(o, mixed)
    gradients = [torch.autograd.grad(each.float().sum(), of) for each, of in ((o, leaves), (expected, narrow))]
    for found, right in zip(*gradients, strict=True):
        assert found.dtype is torch.float32
        assert torch.equal(found, right.float())


def test_query_heads_may_share_keys_and_values():
    torch.manual_seed(0)
    q, k, v = torch.randn(2, 20, 6, 8), torch.randn(2, 20, 2, 8), torch.randn(2, 20, 2, 4)
    log_forget, log_input = -torch.rand(2, 20, 6), torch.randn(2, 20, 6)
    leaves = [t.requires_grad_() for t in (q, k, v, log_forget, log_input)]
    mask = masks.causal_document([12, 5], 20)
    found = flashmask.linear_attention(*leaves, mask)
    expected = torch.empty_like(found)
    for head in range(6):  # each alone, with the keys and values of its group
        own, group = slice(head, head + 1), slice(head // 3, head // 3 + 1)
        gates = log_forget[:, :, own], log_input[:, :, own]
        expected[:, :, own] = flashmask.linear_attention(q[:, :, own], k[:, :, group], v[:, :, group], *gates, mask)
    assert torch.equal(found, expected)
    weight = torch.randn_like(found)
    for own, right in zip(*(torch.autograd.grad((o * weight).sum(), leaves) for o in (found, expected)), strict=True):
        torch.testing.assert_close(own, right)
    arrays = flashmask.linear_attention(*(t.detach().numpy() for t in leaves), mask)
    np.testing.assert_array_equal(arrays, found.detach().numpy())


def test_gradients_of_states_are_those_of_what_they_hold():
    """With log_scale a constant: of e^log_scale times the state, they are those of the sum of weights times k vᵀ."""
    torch.manual_seed(0)
    k, v, log_input = torch.randn(1, 9, 2, 4), torch.randn(1, 9, 2, 3), 4 * torch.randn(1, 9, 2)
    log_forget = -torch.rand(1, 9, 2)
    leaves = [t.double().requires_grad_() for t in (k, v, log_forget, log_input)]
    k, v, log_forget, log_input = leaves
    _, (state, _, log_scale) = flashmask.linear_attention(k, *leaves, output_final_state=True)
    assert (log_scale > 0).all()
    to_the_end = log_forget.flip(1).cumsum(1).flip(1) - log_forget + log_input
    expected = torch.einsum("bth,bthd,bthe->bhde", to_the_end.exp(), k, v)
    found = state * log_scale[..., None, None].exp()
    torch.testing.assert_close(found, expected)
    weight = torch.randn_like(found)
    for own, right in zip(*(torch.autograd.grad((s * weight).sum(), leaves) for s in (found, expected)), strict=True):
        torch.testing.assert_close(own, right)


def test_nan_in_padding_reaches_no_gradient():
    mask, given = masks.causal_document([60, 5], 70), list(inputs(70))
    given[3] = given[3][0, 0]  # a decay for all tokens, whose gradient is a sum over them
    grad = torch.randn(2, 70, 4, 24)

    def gradients(given, grad):
        leaves = [t.clone().requires_grad_() for t in given]
        return torch.autograd.grad(flashmask.linear_attention(*leaves, mask), leaves, grad)

    spoilt = [t.clone() for t in given]
    for each in (*(t for t in spoilt if t.ndim > 1), grad_of_spoilt := grad.clone()):
        each[:, 65:] = torch.nan
    for found, right in zip(gradients(spoilt, grad_of_spoilt), gradients(given, grad), strict=True):
        assert torch.equal(found, right)


def test_gradients_of_gates_are_computed_only_where_wanted(monkeypatch):
    given = inputs(70)
    grad = torch.randn(2, 70, 4, 24, generator=torch.Generator().manual_seed(1))
    found, asked = [], []
    operator = linear.linear_backward_operator

    def backward(*arguments):
        gradients = operator(*arguments)
        asked.append([gradient.numel() for gradient in gradients[3:5]])
        return gradients

    monkeypatch.setattr(linear, "linear_backward_operator", backward)
    for count in (3, 5):
        leaves = [t.clone().requires_grad_(i < count) for i, t in enumerate(given)]
        o = flashmask.linear_attention(*leaves, normalize=True)
        found.append(torch.autograd.grad(o, leaves[:3], grad))
    assert (asked[0], asked[-1]) == ([0, 0], [560, 560])
    for a, b in zip(*found, strict=True):
        assert torch.equal(a, b)
