# SPDX-License-Identifier: Apache-2.0
"""Functions of scores: attention(score=f) and scores.function() against a dense formula in double precision."""

import math

import pytest

torch = pytest.importorskip("torch", reason="functions take tensors")

import flashmask  # noqa: E402
from flashmask import scores  # noqa: E402

B, H, KV, ROWS, COLUMNS, D = 2, 4, 2, 70, 90, 32
MASK = flashmask.masks.causal(ROWS, COLUMNS)


def tensors(dtype=torch.float32):
    torch.manual_seed(0)
    shapes = (B, ROWS, H, D), (B, COLUMNS, KV, D), (B, COLUMNS, KV, 24)
    return [torch.randn(shape).to(dtype).requires_grad_() for shape in shapes]


def formula(q, k, v, function):
    """o and lse under MASK; the function gets scores [b, h, q, k] and indices."""
    q, k, v = q.double(), *(each.double().repeat_interleave(H // KV, 2) for each in (k, v))
    sizes = B, H, ROWS, COLUMNS
    index = [torch.arange(n).view([-1 if i == at else 1 for i in range(4)]) for at, n in enumerate(sizes)]
    s = function(torch.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(D), *index)
    s = s.masked_fill(index[3] > index[2] + COLUMNS - ROWS, -torch.inf)
    return torch.einsum("bhqk,bkhd->bqhd", s.softmax(-1), v), s.logsumexp(-1)


def check(qkv, call, expected, close=1e-5):
    """Compares o, lse and the gradients of q, k and v."""
    o, lse = call
    grad_o, grad_lse = torch.linspace(-1, 1, o.shape[-1]).double(), torch.linspace(0, 1, ROWS).double()
    found = torch.autograd.grad((o.double() * grad_o).sum() + (lse.double() * grad_lse).sum(), qkv)
    wanted = torch.autograd.grad((expected[0] * grad_o).sum() + (expected[1] * grad_lse).sum(), qkv)
    for a, b in zip((o, lse, *found), (*expected, *wanted), strict=True):
        torch.testing.assert_close(a.double(), b.double(), rtol=10 * close, atol=10 * close)


SLOPES = torch.tensor([0.5, 0.25, 0.125, 0.0625])
TABLE = torch.linspace(-1, 1, H * 50).view(H, 50).bfloat16()
TEXTS = {
    "mul(score, score)": ((), lambda s, b, h, i, j: s * s),
    "sub(mul(score, tanh(score)), mul(at(0, h), abs(sub(q, k))))": (
        (SLOPES,),
        lambda s, b, h, i, j: s * s.tanh() - SLOPES[h] * (i - j).abs(),
    ),
    "$0 = floor(div(add(q, k), 4)); mul(score, at(0, h, $0))": (
        (TABLE.T.contiguous().T,),
        lambda s, b, h, i, j: s * TABLE.double()[h, (i + j) // 4],
    ),
    "where(and(lt(score, at(1, b)), le(k, q)), add(score, at(0, h)), neg(score))": (
        (SLOPES, torch.tensor([0.0, 0.5])),
        lambda s, b, h, i, j: torch.where((s < torch.tensor([0.0, 0.5])[b]) & (j <= i), s + SLOPES[h], -s),
    ),
}


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=["f32", "bf16", "f64"])
def test_texts(text, dtype):
    operands, function = TEXTS[text]
    qkv = tensors(dtype)
    call = flashmask.attention(*qkv, MASK, score=scores.function(text, *operands), return_lse=True)
    close = {torch.float32: 1e-5, torch.bfloat16: 0.004, torch.float64: 1e-13}[dtype]
    check(qkv, call, formula(*qkv, function), close)


def test_a_bias_and_a_table_are_read_by_name_and_learn():
    q, k, v = tensors()
    bias = torch.randn(1, H, ROWS, COLUMNS, requires_grad=True)
    table = torch.randn(1, H, 1, ROWS + COLUMNS - 1, requires_grad=True)
    by_bias = scores.function("mul(score, bias)", bias=bias)
    check(
        [q, k, v, bias],
        flashmask.attention(q, k, v, MASK, score=by_bias, return_lse=True),
        formula(q, k, v, lambda s, b, h, i, j: s * bias[0].double()),
    )
    by_table = scores.function("mul(score, distance)", distance=table, origin=ROWS - 1)
    shift = COLUMNS - ROWS + ROWS - 1
    inside = lambda i, j: (i + shift - j).clamp(0, ROWS + COLUMNS - 2)  # noqa: E731
    check(
        [q, k, v, table],
        flashmask.attention(q, k, v, MASK, score=by_table, return_lse=True),
        formula(q, k, v, lambda s, b, h, i, j: s * table.double()[0, h, 0, inside(i, j)]),
    )


def test_dropout_sinks_layouts_and_scale_come_along():
    q, k, v = tensors()
    sinks = torch.randn(H, requires_grad=True)

    def change(s, b, h, i, j):
        return s * s.abs()

    o = flashmask.attention(q, k, v, MASK, score=change, sinks=sinks, scale=0.3)
    swapped = [each.transpose(1, 2) for each in (q, k, v)]
    assert torch.equal(
        flashmask.attention(*swapped, MASK, score=change, sinks=sinks, scale=0.3, layout="bhsd").transpose(1, 2), o
    )
    text = scores.function("mul(score, abs(score))")
    assert torch.equal(flashmask.attention(q, k, v, MASK, score=text, sinks=sinks, scale=0.3), o)
    kept = []
    for score in (change, text):
        torch.manual_seed(1)
        kept.append(flashmask.attention(q, k, v, MASK, score=score, dropout=0.5))
    assert torch.equal(*kept) and not torch.equal(kept[0], flashmask.attention(q, k, v, MASK, score=change))


@pytest.mark.parametrize("text", ["log(abs(score))", "where(lt(score, 0), -inf, sqrt(max(score, 0.01)))"])
@pytest.mark.parametrize("mask", [None, MASK], ids=["full", "causal"])
def test_what_is_infinite_past_the_last_token_or_hidden_changes_nothing(text, mask):
    """A tile's rows past the end have scores of 0, where these functions or their slopes are infinite."""
    found = []
    for dtype in (torch.float32, torch.float64):
        qkv = tensors(dtype)
        o = flashmask.attention(*qkv, mask, score=scores.function(text))
        found.append([o, *torch.autograd.grad(o.square().sum(), qkv)])
    exact = flashmask.attention(*(each.detach().double() for each in tensors()), mask, score=scores.function(text))
    torch.testing.assert_close(found[0][0].double(), exact, rtol=1e-4, atol=1e-4)
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-2, atol=1e-2)


def test_operands_that_the_mask_hides_may_be_nan():
    qkv, values = tensors(), torch.randn(ROWS, COLUMNS)
    poisoned = values.masked_fill(torch.arange(COLUMNS) > torch.arange(ROWS)[:, None] + COLUMNS - ROWS, torch.nan)
    found = []
    for operand in (values, poisoned):
        o = flashmask.attention(*qkv, MASK, score=scores.function("mul(score, at(0, q, k))", operand))
        found.append([o, *torch.autograd.grad(o.square().sum(), qkv)])
    assert all(map(torch.equal, *found))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("text", ["add(score, log(bias))", "mul(mul(score, score), log(bias))"])
def test_what_a_function_hides_passes_on_nothing(text, dtype):
    """Its slopes are infinite there."""
    q, k, v = tensors(dtype)
    bias = torch.rand(B, H, ROWS, COLUMNS, dtype=dtype)
    bias[..., 5::7] = 0
    bias.requires_grad_()
    o = flashmask.attention(q, k, v, MASK, score=scores.function(text, bias=bias))
    found = torch.autograd.grad(o.square().sum(), [q, k, v, bias])
    assert all(torch.isfinite(each).all() for each in found)
    assert (found[3][..., 5::7] == 0).all() and found[3].abs().max() > 0


def test_a_plan_serves_a_function():
    q, k, v = tensors()
    change = scores.function("mul(score, at(0, h))", SLOPES)
    plan = flashmask.plan(MASK, q, k, v, score=change)
    expected = flashmask.attention(q, k, v, MASK, score=change)
    assert torch.equal(flashmask.attention(q, k, v, plan=plan, score=change), expected)


def by_gate_and_distance(gate):
    return lambda s, b, h, i, j: torch.where(s > 0, s * gate[h], 0.5 * s) + 0.1 * torch.cos(i - j)


PLANNED = {
    "steps": lambda s, b, h, i, j: 5 * torch.tanh(s / 5) - SLOPES[h] * (i - j).abs(),
    "a negative factor": lambda s, b, h, i, j: -2 * s,
    "a bias of rows": lambda s, b, h, i, j: s + SLOPES[h] * i,
    "a function": by_gate_and_distance(SLOPES),
    "hides": lambda s, b, h, i, j: torch.where((i + j) % 3 > 0, s.abs(), -torch.inf),
}


@pytest.mark.parametrize("name", PLANNED)
def test_a_plan_serves_a_python_function(name):
    qkv = tensors()
    plan = flashmask.plan(MASK, *qkv, score=PLANNED[name])
    call = flashmask.attention(*qkv, plan=plan, score=PLANNED[name], return_lse=True)
    check(qkv, call, formula(*qkv, PLANNED[name]))
    swapped = [each.transpose(1, 2) for each in qkv]
    again = flashmask.plan(MASK, *swapped, score=PLANNED[name], layout="bhsd")
    o = flashmask.attention(*swapped, plan=again, score=PLANNED[name], layout="bhsd")
    assert torch.equal(o.transpose(1, 2), call[0])


def test_a_plans_function_learns():
    q, k, v = tensors()
    gate = torch.tensor([0.5, 1.0, 1.5, 2.0], requires_grad=True)
    function = by_gate_and_distance(gate)
    plan = flashmask.plan(MASK, q, k, v, score=function)
    call = flashmask.attention(q, k, v, plan=plan, score=function, return_lse=True)
    check([q, k, v, gate], call, formula(q, k, v, by_gate_and_distance(gate.double())))


def test_packed_sequences_take_functions():
    """Queries and keys are counted through all sequences."""
    q, k, v = tensors()
    queries, keys = (torch.tensor(ends) for ends in ([0, 30, ROWS], [0, 50, COLUMNS]))
    inside = torch.zeros(ROWS, COLUMNS, dtype=torch.bool)
    inside[:30, :50] = inside[30:, 50:] = True
    table = torch.randn(COLUMNS)
    for function in (*PLANNED.values(), lambda s, b, h, i, j: s * table[j] + b):
        found = flashmask.varlen_attention(q[0], k[0], v[0], queries, keys, score=function, return_lse=True)
        expected = flashmask.attention(q[:1], k[:1], v[:1], inside, score=function, return_lse=True)
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b[0])
    text = scores.function("mul(score, add(bias, at(0, h)))", SLOPES, bias=torch.randn(H, ROWS, COLUMNS))
    whole = scores.function("mul(score, add(bias, at(0, h)))", SLOPES, bias=text.operands[0][None])
    found = flashmask.varlen_attention(q[0], k[0], v[0], queries, keys, score=text)
    assert torch.equal(found, flashmask.attention(q[:1], k[:1], v[:1], inside, score=whole)[0])


def test_a_function_that_is_read_ahead_passes_graphs_and_exports():
    q, k, v = (each.detach() for each in tensors())
    change = scores.from_function(by_gate_and_distance(SLOPES), q, k)

    class Layer(torch.nn.Module):
        def forward(self, q, k, v):
            return flashmask.attention(q, k, v, MASK, score=change)

    expected = flashmask.attention(q, k, v, MASK, score=by_gate_and_distance(SLOPES))
    assert torch.equal(torch.compile(Layer(), fullgraph=True, backend="aot_eager")(q, k, v), expected)
    assert torch.equal(torch.export.export(Layer(), (q, k, v)).module()(q, k, v), expected)


def test_invariant_documents_have_their_bits_where_places_count_by_distance():
    q, k, v = (torch.randn(1, 200, 2, 32) for _ in range(3))
    whole = flashmask.masks.causal_document([73, 127], 200)
    change = scores.function("mul(score, add(1, mul(0.1, cos(sub(q, k)))))")
    o = flashmask.attention(q, k, v, whole, score=change, invariant=True)
    part = [each[:, 73:] for each in (q, k, v)]
    alone = flashmask.attention(*part, flashmask.masks.causal(127, 127), score=change, invariant=True)
    assert torch.equal(o[:, 73:], alone)
    with pytest.raises(NotImplementedError, match="depends on a token's number in the call"):
        flashmask.attention(q, k, v, whole, score=scores.function("mul(score, q)"), invariant=True)


def test_tangents_follow_functions():
    q, k, v = (each.detach().double() for each in tensors())
    change = scores.function("mul(score, tanh(add(score, at(0, h))))", SLOPES)
    directions = [torch.randn_like(each) for each in (q, k, v)]
    for dtype, close in ((torch.float64, 1e-7), (torch.float32, 1e-3)):
        given = tuple(each.to(dtype) for each in (q, k, v))
        _, found = torch.func.jvp(
            lambda *x: flashmask.attention(*x, MASK, score=change), given, tuple(each.to(dtype) for each in directions)
        )
        step = 1e-6
        ends = [
            flashmask.attention(
                *(x + sign * step * d for x, d in zip((q, k, v), directions, strict=True)), MASK, score=change
            )
            for sign in (1, -1)
        ]
        torch.testing.assert_close(found.double(), (ends[0] - ends[1]) / (2 * step), rtol=close, atol=close)


def test_functions_pass_the_operators_and_graphs():
    q, k, v = tensors()
    change = scores.function("mul(score, at(0, h))", SLOPES)
    compiled = torch.compile(
        lambda q, k, v: flashmask.attention(q, k, v, MASK, score=change), fullgraph=True, backend="aot_eager"
    )
    assert torch.equal(compiled(q, k, v), flashmask.attention(q, k, v, MASK, score=change))


def refused_calls():
    q, k, v = (each.detach() for each in tensors())

    def change(s, b, h, i, j):
        return s * s

    text = scores.function("mul(score, at(0, h))", SLOPES)
    learning = scores.function("mul(score, at(0, h))", SLOPES.clone().requires_grad_())
    lengths = torch.tensor([0, ROWS])
    return {
        "softcap is given beside score=": lambda: flashmask.attention(q, k, v, score=change, softcap=3.0),
        r"score is .*; the plan was made for": lambda: flashmask.attention(
            q, k, v, plan=flashmask.plan(MASK, q, k, v), score=change
        ),
        "^score computes what cannot be read, as the function calls special_i0": lambda: flashmask.attention(
            q, k, v, score=lambda s, b, h, i, j: torch.special.i0(s)
        ),
        "^score adds a bias of each pair that it computes, .* GiB": lambda: flashmask.plan(
            None,
            *(torch.empty(1, 30000, 1, 8, device="meta") for _ in "qk"),
            score=lambda s, b, h, i, j: s + (i * j).sqrt(),
        ),
        "q is a NumPy array|q is .*; expected a torch tensor of 4": lambda: flashmask.attention(
            q.numpy(), k.numpy(), v.numpy(), score=change
        ),
        "whose operands are for torch tensors": lambda: flashmask.attention(
            q.numpy(), k.numpy(), v.numpy(), score=text
        ),
        "operand 0 requires a gradient, and none is computed": lambda: flashmask.attention(q, k, v, score=learning),
        r"flashmask_attention\(\) was given": lambda: flashmask.flashmask_attention(q, k, v, score=text),
        r"keywords for a change of scores \(alibi.*are both given": lambda: flashmask.varlen_attention(
            q[0], k[0, :ROWS], v[0, :ROWS], lengths, lengths, score=change, alibi_slopes=SLOPES
        ),
        r"q and k have shapes \[70, 32\]": lambda: scores.from_function(change, q[0, :, 0], k),
        r"operand 0: it has 0 dimensions; the function reads it with 1 indices": lambda: flashmask.attention(
            q, k, v, score=scores.function("mul(score, at(0, h))")
        ),
        "the text reads bias, and none is given": lambda: scores.function("mul(score, bias)"),
        "bias is given, and not read": lambda: scores.function("mul(score, 2)", bias=SLOPES),
        "a change has alibi and a function": lambda: flashmask.attention(
            q, k, v, score=scores.alibi(SLOPES) | scores.function("mul(score, 2)")
        ),
        "two functions that read operands": lambda: text | text,
        r"at character 5: \$0 has no value.*\n  add\(\$0, score\)\n {6}\^": lambda: scores.function("add($0, score)"),
        r"at character 12: expected a number.*\n  mul\(score, sort\(score\)\)\n {13}\^": lambda: scores.function(
            "mul(score, sort(score))"
        ),
    }


@pytest.mark.parametrize("message", refused_calls())
def test_what_is_refused_is_named(message):
    with pytest.raises((ValueError, TypeError, NotImplementedError), match=message):
        refused_calls()[message]()


@pytest.mark.parametrize("ahead", [False, True])
def test_where_kernels_are_compiled_pairs_are_computed_inside(ahead, monkeypatch):
    """As on a GPU: no tensor of (tokens, tokens), unless a tensor as it stands is the bias, or a part of it learns."""
    monkeypatch.setattr("flashmask._flex.with_functions._may_compile", lambda device, head_dim: True)
    tokens, heads = 30, 2
    document, of_pairs = torch.arange(tokens) // 7, torch.randn(heads, tokens, tokens)
    bucket, weight = torch.randint(0, 4, (tokens, tokens)), torch.randn(heads, 4, requires_grad=True)
    q, k, v = (torch.randn(1, tokens, heads, 16) for _ in range(3))
    changes = {
        "function": lambda s, b, h, i, j: torch.where(document[i] == document[j], s, s - 3.0),
        "tensor": lambda s, b, h, i, j: s + of_pairs[h, i, j],
        "learns": lambda s, b, h, i, j: s + weight[h, bucket[i, j]],
    }
    biases = {
        "function": -3.0 * (document[:, None] != document[None]),
        "tensor": of_pairs,
        "learns": weight[:, bucket],
    }
    for name, change in changes.items():
        read = scores.from_function(change, q, k)
        assert repr(read).startswith("function") == (name == "function"), read
        found = flashmask.attention(q, k, v, score=read if ahead else change)
        s = torch.einsum("bihd,bjhd->bhij", q, k) / 4 + biases[name]
        torch.testing.assert_close(found, torch.einsum("bhij,bjhd->bihd", s.softmax(-1), v))
