# SPDX-License-Identifier: Apache-2.0
"""decode_attention(): few rows against a cache, held against attention by its formula in float64."""

import pytest
import torch
from attention_oracle import random_inputs, softmax_attention, value_and_gradients
from bias_oracle import gradients
from decode_cases import CALLS, CHAIN, MEDUSA, lineage, visible
from torch._subclasses.fake_tensor import FakeTensorMode

import flashmask
from flashmask import masks
from flashmask._torch.decode import parts_of

pytestmark = pytest.mark.kernels


def expected_of(q, k, v, lengths, parents=None):
    seen = visible(q.shape[1], k.shape[1], lengths or [k.shape[1]] * len(q), parents)
    return softmax_attention(q.double(), k.double(), v.double(), seen)


def assert_close(found, expected, tolerance=1e-5):
    for given, right in zip(found, expected, strict=True):
        torch.testing.assert_close(given.double(), right, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
@pytest.mark.parametrize("name", CALLS)
def test_calls_are_attention_by_its_formula(name, layout):
    batch, rows, keys, heads, kv_heads, lengths, parents, splits = CALLS[name]
    q, k, v, *_ = random_inputs(batch, rows, keys, heads, kv_heads, 16, 8)
    given = (q, k, v) if layout == "bshd" else (t.transpose(1, 2).contiguous() for t in (q, k, v))
    counts = None if lengths is None else torch.tensor(lengths)
    o, lse = flashmask.decode_attention(*given, counts, parents, splits=splits, layout=layout, return_lse=True)
    o = o if layout == "bshd" else o.transpose(1, 2)
    if keys == 0:
        assert torch.equal(o, torch.zeros(batch, rows, heads, 8))
        assert torch.isneginf(lse).all()
        return
    assert_close((o, lse), expected_of(q, k, v, lengths, parents))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_dtypes(dtype):
    q, k, v, *_ = (t.to(dtype) for t in random_inputs(2, 21, 200, 4, 2, 16, 16))
    lengths = [200, 90]
    found = flashmask.decode_attention(q, k, v, torch.tensor(lengths), MEDUSA, splits=4, return_lse=True)
    assert found[0].dtype == dtype
    tolerance = {torch.bfloat16: 2e-2, torch.float16: 3e-3, torch.float64: 1e-12}[dtype]
    assert_close(found, expected_of(q, k, v, lengths, MEDUSA), tolerance)


def test_is_attention_under_the_same_mask():
    q, k, v, *_ = random_inputs(2, 21, 400, 4, 2, 16, 16)
    for tree, mask in (
        (None, masks.causal(21, 400)),
        (MEDUSA, masks.tree_in_order(MEDUSA, 21, 379)),
        (masks.medusa_tree([3, 2, 2], 21), masks.medusa_tree([3, 2, 2], 21, 379)),
        (masks.medusa_parents([3, 2, 2]), masks.medusa_tree([3, 2, 2], 21, 379)),
    ):
        found = flashmask.decode_attention(q, k, v, tree=tree, splits=3, scale=0.3, return_lse=True)
        assert_close(found, [t.double() for t in flashmask.attention(q, k, v, mask, scale=0.3, return_lse=True)])


def test_gradients_are_those_of_the_formula():
    made = random_inputs(2, 21, 90, 4, 2, 8, 8)
    lengths = torch.tensor([90, 45])

    def decoded(q, k, v):
        return flashmask.decode_attention(q, k, v, lengths, MEDUSA, splits=4, return_lse=True)

    def by_formula(q, k, v):
        return softmax_attention(q, k, v, visible(21, 90, [90, 45], MEDUSA))

    found = value_and_gradients(decoded, made[:3], *made[3:], torch.float32)
    assert_close(found, value_and_gradients(by_formula, made[:3], *made[3:], torch.float64))


def alibi(slopes, rows, keys, lengths, parents=None):
    """The bias of slopes [batch, heads]: the distance of a row to a key, along the path where rows are a tree."""
    depth = [len(list(lineage(row, parents))) - 1 if parents else row for row in range(rows)]
    distance = torch.zeros(len(lengths), 1, rows, keys, dtype=torch.float64)
    for request, length in enumerate(lengths):
        for key in range(keys):
            node = key - length + rows
            place = depth[node] if 0 <= node < rows else node
            distance[request, 0, :, key] = (torch.tensor(depth) - place).abs()
    return -slopes[:, :, None, None].double() * distance


@pytest.mark.parametrize("name", [name for name, call in CALLS.items() if call[2]])
def test_alibi_counts_along_the_path(name):
    batch, rows, keys, heads, kv_heads, lengths, parents, splits = CALLS[name]
    q, k, v, *_ = random_inputs(batch, rows, keys, heads, kv_heads, 16, 8)
    counts = None if lengths is None else torch.tensor(lengths)
    slopes = 2.0 ** -torch.arange(1.0, batch * heads + 1).reshape(batch, heads)
    known = lengths or [keys] * batch
    for given, each in ((slopes, slopes), (slopes[0], slopes[:1].expand(batch, heads))):
        found = flashmask.decode_attention(q, k, v, counts, parents, splits=splits, alibi_slopes=given, return_lse=True)
        bias = alibi(each, rows, keys, known, parents)
        seen = visible(rows, keys, known, parents)
        assert_close(found, softmax_attention(q.double(), k.double(), v.double(), seen, bias=bias))


@pytest.mark.parametrize("parents", [None, MEDUSA], ids=["causal", "a tree"])
@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 4, 21), (1, 4, 1), (2, 1, 21)])
@pytest.mark.parametrize(("keys", "splits"), [(90, 1), (90, 3), (91, 4)])
def test_a_bias_is_added_to_the_scores_and_learns(parents, shape, keys, splits):
    *made, grad_o, grad_lse = random_inputs(2, 21, keys, 4, 2, 8, 8)
    bias = torch.randn(*shape, keys)
    lengths = [keys, 45]

    def decoded(q, k, v, bias):
        return flashmask.decode_attention(
            q, k, v, torch.tensor(lengths), parents, splits=splits, bias=bias, return_lse=True
        )

    def by_formula(q, k, v, bias):
        return softmax_attention(q, k, v, visible(21, keys, lengths, parents), bias=bias.expand(-1, 4, 21, -1))

    found = gradients(decoded, [*made, bias], grad_o, grad_lse)
    assert_close(found, gradients(by_formula, [t.double() for t in (*made, bias)], grad_o, grad_lse))


@pytest.mark.parametrize("splits", [1, 4])
@pytest.mark.parametrize("tree", [None, MEDUSA], ids=["causal", "a tree"])
def test_sinks_take_probability(splits, tree):
    q, k, v, *_ = random_inputs(2, 21, 90, 4, 2, 8, 8)
    sinks = torch.tensor([0.5, -torch.inf, 3.0, -2.0], requires_grad=True)
    found = flashmask.decode_attention(
        q, k, v, torch.tensor([90, 0]), tree, sinks=sinks, splits=splits, return_lse=True
    )
    seen = visible(21, 90, [90, 0], tree)
    # A key more, whose score is the sink and whose value is nothing.
    scores = torch.einsum("bihd,bjhd->bhij", q.double(), k.double().repeat_interleave(2, 2)) * 8**-0.5
    scores = scores.masked_fill(~seen, -torch.inf)
    scores = torch.cat([scores, sinks.double()[None, :, None, None].expand(2, 4, 21, 1)], -1)
    lse = torch.logsumexp(scores, -1)
    weights = torch.exp(scores - lse[..., None]).nan_to_num(0.0)[..., :-1]
    assert_close(found, (torch.einsum("bhij,bjhd->bihd", weights, v.double().repeat_interleave(2, 2)), lse))
    (gradient,) = torch.autograd.grad(found[0].sum(), sinks)
    finite = torch.tensor([True, False, True, True])
    taken = torch.exp(sinks.double()[:, None] - lse) * found[0].sum(-1).transpose(1, 2)
    torch.testing.assert_close(gradient.double()[finite], -taken.sum((0, 2))[finite], atol=1e-4, rtol=1e-4)
    assert gradient[1] == 0


def test_lengths_are_read_in_every_call():
    q, k, v, *_ = random_inputs(2, 3, 100, 4, 2, 16, 8)
    lengths = torch.tensor([50, 60], dtype=torch.int32)
    flashmask.decode_attention(q, k, v, lengths, splits=2)
    lengths.numpy()[:] += 7  # PyTorch does not count this as a write
    expected = expected_of(q, k, v, [57, 67])
    assert_close(flashmask.decode_attention(q, k, v, lengths, splits=2, return_lse=True), expected)
    assert_close(flashmask.decode_attention(q, k, v, [57, 67], splits=2, return_lse=True), expected)
    assert_close(flashmask.decode_attention(q, k, v, (57, 67), return_lse=True), expected)


def test_keys_beyond_a_length_may_hold_anything():
    q, k, v, *_ = random_inputs(2, 3, 96, 4, 2, 16, 8)
    lengths = [96, 41]
    expected = flashmask.decode_attention(q, k, v, torch.tensor(lengths), splits=3)
    k[1, 41:], v[1, 41:] = 1e30, -1e30
    assert torch.equal(flashmask.decode_attention(q, k, v, torch.tensor(lengths), splits=3), expected)


def test_what_inference_mode_made_serves_training():
    made = random_inputs(1, 5, 123, 2, 1, 8, 8)
    with torch.inference_mode():
        expected = flashmask.decode_attention(*made[:3], tree=[-1, 0, 0, 1, 1], splits=2)
    leaves = [t.requires_grad_() for t in made[:3]]
    o = flashmask.decode_attention(*leaves, tree=[-1, 0, 0, 1, 1], splits=2)
    assert torch.equal(o, expected)
    torch.autograd.grad(o.sum(), leaves)


@pytest.mark.parametrize("tree", [None, list(MEDUSA), list(CHAIN)], ids=["causal", "breadth first", "a chain"])
def test_compiled_calls_are_the_same_bits(tree):
    rows = 21 if tree is None else len(tree)
    q, k, v, *_ = random_inputs(2, rows, 200, 4, 2, 16, 8)

    def call(q, k, v, lengths):
        return flashmask.decode_attention(q, k, v, lengths, tree, splits=4, return_lse=True)

    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    for lengths in ([200, 90], [33, 0]):
        given = q, k, v, torch.tensor(lengths)
        for found, expected in zip(compiled(*given), call(*given), strict=True):
            assert torch.equal(found, expected)


def test_a_compiled_call_parts_the_keys_as_the_cpu_has_threads():
    q, k, v, *_ = random_inputs(2, 3, 700, 4, 1, 16, 8)
    lengths = torch.tensor([640, 700])
    compiled = torch.compile(flashmask.decode_attention, fullgraph=True, backend="eager")
    assert torch.equal(compiled(q, k, v, lengths), flashmask.decode_attention(q, k, v, lengths))


def on_fake_tensors(call, *given):
    with FakeTensorMode() as mode:
        call(*(mode.from_tensor(each) for each in given))


def differentiated_by_torch_func(call, *given):
    with pytest.raises(NotImplementedError, match=r"does not support torch\.func\.grad"):
        torch.func.grad(lambda q: call(q, *given[1:]).sum())(given[0])


@pytest.mark.parametrize("trace", [on_fake_tensors, differentiated_by_torch_func])
@pytest.mark.parametrize("tree", [None, MEDUSA])
def test_what_a_trace_made_serves_no_call(trace, tree):
    rows = 21 if tree else 2
    q, k, v, *_ = random_inputs(1, rows, 333, 2, 1, 8, 8)

    def call(q, k, v):
        return flashmask.decode_attention(q, k, v, tree=tree)

    trace(call, q, k, v)
    expected = expected_of(q, k, v, None, tree)[0]
    torch.testing.assert_close(call(q, k, v).double(), expected, atol=1e-5, rtol=1e-5)
    trace(call, q, k, v)  # nor does what a call made serve a trace


def test_caches_that_are_longer_than_their_keys_are_parted_without_a_copy():
    q, k, v, *_ = random_inputs(2, 2, 128, 4, 2, 16, 16)
    assert parts_of(q, k, v, 4).together
    assert not parts_of(q, k, v, 3).together
    assert not parts_of(q, k[:, :100], v[:, :100], 4).together
    assert parts_of(q[:1], k[:1, :101], v[:1, :101], 4).together
    for keys in (100, 101):
        found = flashmask.decode_attention(q, k[:, :keys], v[:, :keys], splits=4, return_lse=True)
        assert_close(found, expected_of(q, k[:, :keys], v[:, :keys], None))


def test_any_strides_and_no_requests():
    q, k = torch.randn(2, 3, 4, 8), torch.randn(2, 20, 2, 8)
    one_for_all = k[:1, :, :1].expand(2, 20, 2, 8)
    turned = k.transpose(2, 3).contiguous().transpose(2, 3)
    for keys in (one_for_all, turned, k.flip(1)[:, ::2]):
        found = flashmask.decode_attention(q, keys, keys, splits=4, return_lse=True)
        assert_close(found, expected_of(q, keys, keys, None))
    for splits in (None, 1, 3):
        for lengths in (None, torch.zeros(0, dtype=torch.long)):
            o, lse = flashmask.decode_attention(q[:0], k[:0], k[:0], lengths, splits=splits, return_lse=True)
            assert (o.shape, lse.shape) == ((0, 3, 4, 8), (0, 4, 3))


def test_parts_fill_the_workers(monkeypatch):
    from flashmask._torch import decode

    q, k, v = torch.empty(1, 64, 32, 8), torch.empty(1, 131072, 8, 8), torch.empty(1, 131072, 8, 8)
    for workers, most_idle in ((132, 0.1), (108, 0.1), (16, 0)):
        monkeypatch.setattr(decode, "_workers", lambda q, workers=workers: workers)
        tiles = 16 * parts_of(q, k, v, None).splits
        assert 1 - tiles / (workers * -(-tiles // workers)) <= most_idle, workers
    monkeypatch.setattr(decode, "_workers", lambda q: 132)
    assert parts_of(q, k[:, :300], v[:, :300], None).splits == 1
    assert parts_of(q[:, :0], k, v, None).splits == 1


Q, K = torch.zeros(2, 3, 4, 8), torch.zeros(2, 10, 2, 8)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"q": Q[:, :0]}, ValueError, "q has 0 rows a request; expected 1 to 256"),
        ({"q": torch.zeros(2, 257, 4, 8)}, ValueError, "q has 257 rows"),
        ({"q": Q[0]}, ValueError, r"q has shape \[3, 4, 8\]; expected four dimensions"),
        ({"q": Q.numpy()}, TypeError, "q is ndarray of float32"),
        ({"k": K[:1]}, ValueError, r"k has shape \[1, 10, 2, 8\] beside a q of \[2, 3, 4, 8\]"),
        ({"k": torch.zeros(2, 10, 3, 8)}, ValueError, "with kv heads that divide 4"),
        ({"v": K[:, :9]}, ValueError, r"v has shape \[2, 9, 2, 8\]; expected \(2, 10, 2, value dim\), as k"),
        ({"v": K.double()}, TypeError, "expected one dtype"),
        ({"lengths": torch.tensor([1, 2, 3])}, ValueError, r"lengths has shape \[3\]; expected \[2\]"),
        ({"lengths": torch.tensor([1.0, 2.0])}, TypeError, "lengths holds torch.float32 values"),
        ({"lengths": [5, -1]}, ValueError, r"lengths\[1\] is -1"),
        ({"lengths": torch.tensor([5, 11])}, ValueError, r"lengths holds 11; expected 0 to 10"),
        ({"lengths": torch.tensor([-2, 1])}, ValueError, r"lengths holds -2; expected 0 to 10"),
        ({"lengths": torch.tensor([5, 5], device="meta")}, ValueError, "lengths is on meta; expected cpu"),
        ({"tree": [-1, 0]}, ValueError, "tree has 2 nodes; expected 3, one for each row of q"),
        ({"tree": [-1, 2, 0]}, ValueError, r"tree\[1\] is 2; expected a parent that comes before the node"),
        ({"tree": [0, 0, 0]}, ValueError, r"tree\[0\] is 0"),
        ({"tree": [-1, -2, 0]}, ValueError, r"tree\[1\] is -2"),
        ({"tree": [-1, 0.0, 0]}, TypeError, "tree holds float64 values; expected integers"),
        ({"tree": masks.causal(3, 4)}, ValueError, r"tree is a mask of \[1, 1, 3, 4\]"),
        ({"tree": masks.sliding_window(3, 3, 2)}, ValueError, "row 2 does not see itself, one earlier token"),
        ({"tree": masks.from_dense(torch.zeros(3, 3, dtype=torch.bool))}, ValueError, "row 0 does not see itself"),
        ({"splits": 0}, ValueError, "splits is 0; expected at least 1"),
        ({"splits": 11}, ValueError, "splits is 11; expected at most 10"),
        ({"splits": 2.0}, TypeError, r"splits is float 2\.0; expected an integer"),
        ({"sinks": torch.zeros(3)}, ValueError, r"sinks has shape \[3\]; expected \[4\], one for each query head"),
        ({"sinks": torch.zeros(4).double()}, TypeError, "sinks holds torch.float64 values"),
        ({"sinks": [0.0] * 4}, TypeError, r"sinks is list \[0.0"),
        ({"alibi_slopes": torch.ones(3)}, ValueError, r"alibi_slopes has shape \[3\]; expected \[4\]"),
        ({"alibi_slopes": torch.ones(4).requires_grad_()}, ValueError, "alibi_slopes requires a gradient"),
        ({"bias": torch.zeros(10)}, ValueError, r"bias has shape \[10\]; expected \[1 or 2, 1 or 4, 1 or 3, 10\]"),
        ({"bias": 0.5}, TypeError, r"bias is float 0\.5; expected a torch tensor"),
        ({"bias": torch.zeros(1, 1, 1, 10, dtype=torch.int32)}, TypeError, "bias has dtype torch.int32"),
        (
            {"bias": torch.zeros(1, 1, 1, 10), "alibi_slopes": torch.ones(4)},
            ValueError,
            "alibi_slopes and bias are given together",
        ),
        ({"layout": "hbsd"}, ValueError, "layout is 'hbsd'"),
        ({"scale": float("nan")}, ValueError, "scale is nan"),
    ],
)
def test_refuses_what_does_not_fit(change, error, message):
    with pytest.raises(error, match=message):
        flashmask.decode_attention(**{"q": Q, "k": K, "v": K, **change})
