# SPDX-License-Identifier: Apache-2.0
"""Layers with a state over the nodes of a mask: recurrences by levels, and the convolution along predecessors."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import flashmask
from flashmask import masks
from flashmask.recurrent import causal_conv, one_by_one, over_nodes

PROMPT, ANSWERS = 7, (5, 1, 6)


def forked():
    """A document, a prompt with two answers of which the second one forks again, and padding."""
    ends = [6] * 6 + [24] * 4 + [12] * 2 + [19] * 3 + [17] * 2 + [19] * 2 + [24] * 5 + [24] * 3
    rows = torch.tensor(ends, dtype=torch.int32)[None, None, :, None]
    return masks.from_startend_row_indices(rows, causal=True)


def shared_prompt():
    ends = [PROMPT + sum(ANSWERS)] * PROMPT
    for length in ANSWERS:
        ends += [len(ends) + length] * length
    return masks.from_startend_row_indices(torch.tensor(ends, dtype=torch.int32)[None, None, :, None], causal=True)


MASKS = {
    "causal": lambda: masks.causal(24, 24),
    "documents": lambda: masks.causal_document([3, 1, 2, 11, 7], 24),
    "padded documents": lambda: masks.causal_document([9, 8], 24),
    "shared prompt": shared_prompt,
    "forks of forks": forked,
}


@pytest.fixture(params=MASKS)
def mask(request):
    return MASKS[request.param]()


def decay(q, k, v, g, initial_state=None, output_final_state=False):
    """Gated linear attention of one sequence, token by token: (1, length, heads, dim), gates (1, length, heads)."""
    state = q.new_zeros(1, *q.shape[2:], v.shape[3]) if initial_state is None else initial_state
    outputs = []
    for t in range(q.shape[1]):
        state = g[:, t, :, None, None].exp() * state + k[:, t, :, :, None] * v[:, t, :, None]
        outputs.append((q[:, t, :, None] @ state)[:, :, 0])
    return torch.stack(outputs, 1), state if output_final_state else None


def inputs_of(tokens, batch=1, **options):
    torch.manual_seed(1)
    q, k, v = (torch.randn(batch, tokens, 2, size, **options, requires_grad=True) for size in (3, 3, 4))
    return q, k, v, torch.randn(batch, tokens, 2, **options).sigmoid().log().requires_grad_()


def tokens_in(nodes):
    """The tokens that are in some node."""
    return {token for begin, end in zip(nodes.begins, nodes.ends, strict=True) for token in range(begin, end)}


def by_scores(q, k, v, g, mask):
    """Computes the same from what rows see, without a state: scores times products of gates along predecessors."""
    nodes = flashmask.nodes(mask)
    seen = torch.from_numpy(np.asarray(mask.to_dense()))[0, 0]
    sums: list[torch.Tensor] = []
    for token, before in enumerate(nodes.predecessors):
        sums.append(g[:, token] + (sums[before] if before >= 0 else 0))
    path = torch.stack(sums, 1)
    weights = (path[:, :, None] - path[:, None]).masked_fill(~seen[None, :, :, None], -torch.inf).exp()
    padding = torch.tensor([token not in tokens_in(nodes) for token in range(nodes.tokens)])
    o = torch.einsum("bihd,bjhd,bijh,bjhe->bihe", q, k, weights, v)
    return o.masked_fill(padding[None, :, None, None], 0)


def assert_same(found, expected, given):
    """Values, and the gradients of what was given."""
    torch.testing.assert_close(found, expected)
    weight = torch.randn_like(found)
    gradients = (torch.autograd.grad((each * weight).sum(), given) for each in (found, expected))
    for own, other in zip(*gradients, strict=True):
        torch.testing.assert_close(own, other)


def test_a_recurrence_computes_what_its_scores_say(mask):
    given = inputs_of(mask.shape.rows, dtype=torch.float64)
    found = over_nodes(one_by_one(decay), flashmask.nodes(mask), *given)
    expected = by_scores(*given, mask)
    assert_same(found, expected, given)


def test_a_recurrence_is_called_once_a_level():
    calls = []

    def run(*given, cu_seqlens, **options):
        calls.append(cu_seqlens.tolist())
        return one_by_one(decay)(*given, cu_seqlens=cu_seqlens, **options)

    nodes = flashmask.nodes(shared_prompt())
    over_nodes(run, nodes, *inputs_of(nodes.tokens))
    assert calls == [[0, PROMPT], [0, *np.cumsum(ANSWERS)]]


def test_documents_go_to_the_kernel_as_they_lie():
    q = torch.randn(1, 24, 2, 3)

    def run(given, cu_seqlens, **options):
        assert given.data_ptr() == q.data_ptr()
        assert cu_seqlens.tolist() == [0, 3, 4, 6, 17, 24]
        return given

    assert torch.equal(over_nodes(run, flashmask.nodes(MASKS["documents"]()), q), q)


def test_states_go_in_at_roots_and_come_out_of_nodes():
    nodes = flashmask.nodes(masks.causal_document([9, 8], 17))
    given = inputs_of(17)
    whole, states = over_nodes(one_by_one(decay), nodes, *given, output_final_state=True)
    cut = [5, 12]  # each document in two calls: 5 of 9 tokens, 3 of 8
    first = [torch.cat([each[:, :5], each[:, 9:12]], 1) for each in given]
    second = [torch.cat([each[:, 5:9], each[:, 12:]], 1) for each in given]
    nodes_of = [flashmask.nodes(masks.causal_document(lengths, sum(lengths))) for lengths in ([5, 3], [4, 5])]
    one, between = over_nodes(one_by_one(decay), nodes_of[0], *first, output_final_state=True)
    two, after = over_nodes(one_by_one(decay), nodes_of[1], *second, initial_state=between, output_final_state=True)
    torch.testing.assert_close(torch.cat([one[:, :5], two[:, :4], one[:, 5:], two[:, 4:]], 1), whole)
    torch.testing.assert_close(after, states)
    assert cut


def test_gradients_of_branches_are_the_same_bits_as_their_sum_in_order():
    nodes = flashmask.nodes(shared_prompt())
    given = inputs_of(nodes.tokens)
    found = over_nodes(one_by_one(decay), nodes, *given)
    grads = [torch.autograd.grad(found.square().sum(), given, retain_graph=True) for _ in range(3)]
    for other in grads[1:]:
        assert all(torch.equal(a, b) for a, b in zip(grads[0], other, strict=True))


@pytest.mark.parametrize("run", ["recurrence", "convolution"])
def test_nothing_leaks_from_one_document_to_another(run):
    lengths = [3, 1, 2, 11, 7]
    nodes = flashmask.nodes(masks.causal_document(lengths, 24))
    if run == "recurrence":
        given = inputs_of(24)
        compute = lambda *inputs: over_nodes(one_by_one(decay), nodes, *inputs)  # noqa: E731
    else:
        given = (torch.randn(1, 24, 5, requires_grad=True),)
        weight, bias = torch.randn(5, 4), torch.randn(5)
        compute = lambda x: causal_conv(x, weight, bias, nodes=nodes)  # noqa: E731

    def results(inputs, rows):
        found = compute(*inputs)
        return [found[:, rows], *(each[:, rows] for each in torch.autograd.grad(found[:, rows].sum(), inputs))]

    for number, (begin, end) in enumerate(zip(nodes.begins, nodes.ends, strict=True)):
        rows = [t for t in range(24) if not begin <= t < end]
        spoilt = [each.detach().clone() for each in given]
        for each in spoilt:
            each[:, begin:end] = torch.nan
            each.requires_grad_()
        for before, after in zip(results(given, rows), results(spoilt, rows), strict=True):
            assert torch.equal(before, after), number


def test_a_batch_takes_the_nodes_of_one_entry_for_each():
    nodes = flashmask.nodes(MASKS["documents"]())
    given = inputs_of(24, batch=3)
    whole = over_nodes(one_by_one(decay), nodes, *given)
    for entry in range(3):
        alone = over_nodes(one_by_one(decay), nodes, *(each[entry : entry + 1] for each in given))
        assert torch.equal(alone[0], whole[entry])


def by_predecessors(x, weight, bias, nodes):
    """The convolution of one entry, token by token."""
    width = weight.shape[1]
    rows = []
    for token in range(nodes.tokens):
        total, at = bias.clone(), token
        for k in range(width):
            if at < 0:
                break
            total = total + weight[:, width - 1 - k] * x[0, at]
            at = int(nodes.predecessors[at])
        rows.append(total if token in tokens_in(nodes) else 0 * total)
    return torch.stack(rows)[None]


@pytest.mark.parametrize("width", [1, 2, 4, 6])
def test_the_convolution_runs_along_predecessors(mask, width):
    torch.manual_seed(2)
    nodes = flashmask.nodes(mask)
    given = [
        torch.randn(1, nodes.tokens, 5, dtype=torch.float64, requires_grad=True),
        torch.randn(5, width, dtype=torch.float64, requires_grad=True),
        torch.randn(5, dtype=torch.float64, requires_grad=True),
    ]
    found, expected = causal_conv(*given, nodes=nodes), by_predecessors(*given, nodes)
    assert_same(found, expected, given)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_convolution_of_one_document_is_that_of_torch(dtype):
    torch.manual_seed(3)
    x, weight, bias = (
        torch.randn(2, 50, 33, dtype=dtype),
        torch.randn(33, 1, 4, dtype=dtype),
        torch.randn(33, dtype=dtype),
    )
    found = causal_conv(x, weight, bias, nodes=flashmask.nodes(masks.causal(50, 50)))
    expected = F.conv1d(x.double().transpose(1, 2), weight.double(), bias.double(), padding=3, groups=33)[..., :50]
    assert found.dtype is dtype
    torch.testing.assert_close(
        found.double(), expected.transpose(1, 2), atol=2e-2 if dtype is torch.bfloat16 else 3e-3, rtol=1e-2
    )


def test_a_document_has_the_bits_that_it_has_alone():
    torch.manual_seed(4)
    x = torch.randn(1, 4000, 300, requires_grad=True)  # in pieces: several of what is computed at a time
    weight = torch.randn(300, 4)
    lengths = [1500, 2, 1700, 798]
    packed = causal_conv(x, weight, nodes=flashmask.nodes(masks.causal_document(lengths, 4000)))
    grad = torch.randn_like(packed)
    (of_packed,) = torch.autograd.grad(packed, x, grad)
    at = 0
    for length in lengths:
        own = x[:, at : at + length].detach().requires_grad_()
        alone = causal_conv(own, weight, nodes=flashmask.nodes(masks.causal(length, length)))
        (of_alone,) = torch.autograd.grad(alone, own, grad[:, at : at + length])
        assert torch.equal(alone, packed[:, at : at + length])
        assert torch.equal(of_alone, of_packed[:, at : at + length])
        at += length


def test_nan_that_no_token_is_behind_reaches_no_gradient():
    """The padding's, and that of the last two tokens of a document, which no token is two behind."""
    torch.manual_seed(5)
    nodes = flashmask.nodes(masks.causal_document([9, 8], 24))
    x, weight, bias = torch.randn(1, 24, 5), torch.randn(5, 4), torch.randn(5)
    grad = torch.randn(1, 24, 5)

    def gradients(x, grad):
        leaves = [each.clone().requires_grad_() for each in (x, weight, bias)]
        return torch.autograd.grad(causal_conv(*leaves, nodes=nodes), leaves, grad)

    spoilt, grad_of_spoilt = x.clone(), grad.clone()
    spoilt[:, 17:] = grad_of_spoilt[:, 17:] = torch.nan
    for expected, found in zip(gradients(x, grad), gradients(spoilt, grad_of_spoilt), strict=True):
        assert torch.equal(found, expected)
    spoilt[:, 7:9] = torch.nan
    before_two = slice(0, 2)  # weight[:, 3 - k] is for the k-th predecessor
    _, found, _ = gradients(spoilt, grad)
    assert torch.equal(found[:, before_two], gradients(x, grad)[1][:, before_two])
    assert found[:, 2:].isnan().all()


def test_the_convolution_passes_gradcheck_twice():
    nodes = flashmask.nodes(masks.shared_question([(5, [3, 1, 2])], 13))
    given = [
        torch.randn(size, dtype=torch.float64, requires_grad=True) for size in [(1, nodes.tokens, 2), (2, 3), (2,)]
    ]
    assert torch.autograd.gradcheck(lambda *each: causal_conv(*each, nodes=nodes), given)
    assert torch.autograd.gradgradcheck(lambda *each: causal_conv(*each, nodes=nodes), given)


def test_nodes_are_found_from_row_indices_too():
    rows = masks.from_cu_seqlens(torch.tensor([0, 3, 8], dtype=torch.int32), tokens=8, causal=True)
    assert flashmask.nodes(rows).begins.tolist() == [0, 3]


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (
            lambda: flashmask.nodes(masks.sliding_window(8, 8, 2)),
            ValueError,
            "column 1 is seen by row 2, which does not",
        ),
        (lambda: flashmask.nodes(torch.ones(4, 4)), TypeError, "expected flashmask.Mask or flashmask.RowIndices"),
        (lambda: over_nodes(decay, flashmask.nodes(masks.causal(8, 8)), torch.ones(1, 7, 2)), ValueError, "7"),
        (lambda: over_nodes(decay, flashmask.nodes(masks.causal(8, 8))), ValueError, "no inputs"),
        (lambda: over_nodes(decay, masks.causal(8, 8), torch.ones(1, 8, 2)), TypeError, "expected flashmask.Nodes"),
        (
            lambda: over_nodes(decay, flashmask.nodes(masks.causal(8, 8)), torch.ones(1, 8, 2), torch.ones(1, 4, 2)),
            ValueError,
            "input 1 has shape",
        ),
        (
            lambda: over_nodes(
                decay, flashmask.nodes(masks.causal(8, 8)), torch.ones(1, 8, 2), initial_state=torch.ones(2, 3)
            ),
            ValueError,
            "expected (1, ...), a state for each of the mask's roots",
        ),
        (
            lambda: causal_conv(torch.ones(1, 8, 2), torch.ones(3, 4), nodes=flashmask.nodes(masks.causal(8, 8))),
            ValueError,
            "expected (2, width) or (2, 1, width)",
        ),
    ],
)
def test_wrong_calls_say_what_is_expected(call, error, says):
    with pytest.raises(error) as raised:
        call()
    assert says in str(raised.value)
