# SPDX-License-Identifier: Apache-2.0
"""score_mods: each form against the dense formula in double precision, with the gradients of what they capture."""

import pytest

torch = pytest.importorskip("torch", reason="flex_attention takes tensors")

from flex_oracle import flex_formula, tensors  # noqa: E402
from score_mods import CASES, FUNCTIONS, SERVED, B, H, N  # noqa: E402

from flashmask import flex_attention  # noqa: E402
from flashmask._flex.recipe import recognise  # noqa: E402
from flashmask._flex.scores import Unrecognised  # noqa: E402
from flashmask._flex.symbols import Space  # noqa: E402
from flashmask._flex.with_functions import _recipe  # noqa: E402


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def learning(captured, frozen=(), double=False):
    """Copies of captured tensors; those of floating point learn but for the `frozen` ones."""
    copies = {}
    for name, each in captured.items():
        copy = each.double() if double and each.is_floating_point() else each.clone()
        copies[name] = copy.requires_grad_(each.is_floating_point() and name not in frozen)
    return copies


def gradients(o, lse, leaves):
    """Returns the gradients of a loss of o and of the lse of rows that see something."""
    loss = (o * torch.linspace(-1, 1, o.shape[-1], dtype=o.dtype)).sum() + (lse.where(lse > -torch.inf, 0.0) ** 2).sum()
    return torch.autograd.grad(loss, leaves, allow_unused=True)


def check(make, captured, *, close, frozen=(), visible=None, **call):
    """Compares o, lse and all gradients with the formula's; `close` bounds differences of float32 from float64."""
    qkv = tensors(**{name: call.pop(name) for name in ("key_heads", "rows", "columns", "dtype") if name in call})
    ours, exact = learning(captured, frozen), learning(captured, frozen, double=True)
    o, lse = flex_attention(*qkv, make(ours), return_lse=True, enable_gqa=True, **call)
    doubles = [each.detach().double().requires_grad_() for each in qkv]
    expected = flex_formula(*doubles, make(exact), visible)
    torch.testing.assert_close(o.double(), expected[0], rtol=close, atol=close)
    torch.testing.assert_close(lse.double(), expected[1], rtol=close, atol=close)
    names = [name for name, each in ours.items() if each.requires_grad]
    found = gradients(o, lse, [*qkv, *(ours[name] for name in names)])
    wanted = gradients(*expected, [*doubles, *(exact[name] for name in names)])
    for name, a, b in zip(["q", "k", "v", *names], found, wanted, strict=True):
        assert a.shape == b.shape, name
        torch.testing.assert_close(a.double(), b, rtol=10 * close, atol=10 * close, msg=lambda m, n=name: f"{n}: {m}")


def parts_of(make, captured, grouped=False):
    return _recipe(make(captured), Space((B, H, N, N), "cpu"), torch.float32, grouped).parts()


@pytest.mark.parametrize("name", CASES)
def test_score_mods_of_the_field(name):
    case = CASES[name]
    captured = case.captured()
    assert parts_of(case.make, learning(captured, case.frozen)) == case.becomes
    check(case.make, captured, close=1e-5, frozen=case.frozen)


@pytest.mark.parametrize("name", CASES)
def test_score_mods_in_bfloat16(name):
    """Factors round q and k; biases, caps, functions and sums are those of float32."""
    case = CASES[name]
    check(case.make, case.captured(), close=0.02, frozen=case.frozen, dtype=torch.bfloat16)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_score_mods_that_no_other_argument_computes(name):
    """These become functions of scores; why they are no other arguments is said."""
    case = CASES[name]
    with pytest.raises(Unrecognised) as error:
        recognise(case.make(case.captured()), Space((B, H, N, N), "cpu"), torch.float32, False)
    assert str(error.value) == case.on_gpus


def test_counts_of_the_field():
    assert (len(SERVED), len(FUNCTIONS)) == (22, 4)


def slopes():
    return {"slopes": torch.tensor([0.5, 0.25, 0.125, 0.0625])}


def in_place(c):
    def change(s, b, h, i, j):
        s = s + c["of_head"][h]
        s += c["of_batch"][b]
        s *= 2
        s -= c["of_key"][j]
        return s + c["of_query"][i]

    return change


FORMS = {
    "biases of each index, in place": (
        in_place,
        lambda: {name: torch.randn(n) for n, name in ((B, "of_batch"), (H, "of_head"), (N, "of_query"), (N, "of_key"))},
        ["scale", "rows", "keys"],
    ),
    "a bias of query and key as a product": (
        lambda c: lambda s, b, h, i, j: s + c["of"][h, i] * c["of"][h, j],
        lambda: {"of": torch.randn(H, N)},
        ["pairs"],
    ),
    "a bias of tokens looked up": (
        lambda c: lambda s, b, h, i, j: s + torch.tanh(c["bias"][c["at"][b, i], j]) * 0.5,
        lambda: {"bias": torch.randn(N, N), "at": torch.randint(0, N, (B, N))},
        ["pairs"],
    ),
    "one tensor as factor and as biases": (
        lambda c: lambda s, b, h, i, j: (s + c["of"][i]) * torch.exp(c["of"][i] * 0.1) + c["of"][j],
        lambda: {"of": torch.randn(N)},
        ["query_factor", "rows", "keys"],
    ),
    "gates behind a function": (
        lambda c: lambda s, b, h, i, j: s * torch.sigmoid(c["gate"][h]),
        lambda: {"gate": torch.randn(H)},
        ["query_factor"],
    ),
    "-inf behind a prefix": (
        lambda c: lambda s, b, h, i, j: torch.where(i <= c["prefix"][b], s, torch.where(i >= j, s, -torch.inf)),
        lambda: {"prefix": torch.randint(0, N, (B,))},
        ["masks"],
    ),
    "a number": (lambda c: lambda s, b, h, i, j: -0.5 * s / 2, dict, ["scale"]),
    "a number in a tensor": (
        lambda c: lambda s, b, h, i, j: s * c["by"],
        lambda: {"by": torch.tensor(0.3)},
        ["query_factor"],
    ),
    "zero": (
        lambda c: lambda s, b, h, i, j: s * 0.0 + c["bias"][j],
        lambda: {"bias": torch.randn(N)},
        ["scale", "keys"],
    ),
    "nothing": (lambda c: lambda s, b, h, i, j: s.clone().float().to(s.dtype), dict, []),
    "a factor of batch, head and query": (
        lambda c: lambda s, b, h, i, j: s * c["of_query"][b, h, i] / (1 + h),
        lambda: {"of_query": torch.randn(B, H, N)},
        ["query_factor"],
    ),
    "a factor of batch, head and key": (
        lambda c: lambda s, b, h, i, j: s * c["of_key"][b, h, j],
        lambda: {"of_key": torch.randn(B, H, N)},
        ["key_factor"],
    ),
    "factors of query and key in one product": (
        lambda c: (
            lambda s, b, h, i, j: s * (c["of_query"][i] * c["of_key"][j]) * (c["of_query"][i] / (2.0 + c["of_key"][j]))
        ),
        lambda: {"of_query": torch.rand(N), "of_key": torch.rand(N)},
        ["query_factor", "key_factor"],
    ),
    "a factor of heads where a condition holds": (
        lambda c: lambda s, b, h, i, j: torch.where(h < 2, s * 2, s * c["by"][h]),
        lambda: {"by": torch.randn(H)},
        ["query_factor"],
    ),
    "a sum of scores": (
        lambda c: lambda s, b, h, i, j: s + (s * c["gate"][h] - c["bias"][j]),
        lambda: {"gate": torch.randn(H), "bias": torch.randn(N)},
        ["query_factor", "keys"],
    ),
    "a negative softcap": (lambda c: lambda s, b, h, i, j: -2 * (s / 3).tanh() * 2, dict, ["scale", "softcap"]),
    "a softcap of a factor": (
        lambda c: lambda s, b, h, i, j: c["cap"] * torch.tanh(s * c["gate"][h] / c["cap"]) + c["bias"][b, j],
        lambda: {"cap": torch.tensor(2.0), "gate": torch.randn(H), "bias": torch.randn(B, N)},
        ["query_factor", "softcap", "keys"],
    ),
    "ALiBi": (
        lambda c: lambda s, b, h, i, j: s - (c["slopes"][h] * (j - i).abs()).to(torch.float32),
        slopes,
        ["alibi"],
    ),
    "ALiBi of batch entries": (
        lambda c: lambda s, b, h, i, j: s - c["slopes"][b, h] * (i - j).abs(),
        lambda: {"slopes": torch.rand(B, H)},
        ["alibi"],
    ),
    "ALiBi of a number": (lambda c: lambda s, b, h, i, j: s + -0.3 * (i - j).abs(), dict, ["alibi"]),
    "ALiBi by subtraction": (lambda c: lambda s, b, h, i, j: s - 0.3 * (i - j).abs(), dict, ["alibi"]),
    "ALiBi whose slopes learn": (
        lambda c: lambda s, b, h, i, j: s - c["rates"][h] * (i - j).abs(),
        lambda: {"rates": torch.rand(H)},
        ["distances"],
    ),
    "ALiBi of positions beside a bias of keys": (
        lambda c: lambda s, b, h, i, j: s - c["slopes"][h] * (c["at"][b, i] - c["at"][b, j]).abs() + c["bias"][j],
        lambda: slopes() | {"at": torch.randint(0, 20, (B, N)), "bias": torch.randn(N)},
        ["keys", "alibi"],
    ),
    "ALiBi of positions of heads": (
        lambda c: lambda s, b, h, i, j: s - c["slopes"][h] * (c["at"][h, i] - c["at"][h, j]).abs(),
        lambda: slopes() | {"at": torch.randint(0, 20, (H, N))},
        ["pairs"],
    ),
    "a bias of rows": (
        lambda c: lambda s, b, h, i, j: s + c["bias"][b, h, i] + 1.5,
        lambda: {"bias": torch.randn(B, H, N)},
        ["rows"],
    ),
    "a bias of batch, head and key": (
        lambda c: lambda s, b, h, i, j: c["bias"][b, h, j] + s,
        lambda: {"bias": torch.randn(B, H, N)},
        ["keys"],
    ),
    "a bias by distance and batch": (
        lambda c: lambda s, b, h, i, j: s + c["table"][b, torch.clamp(i - j + 3, min=0, max=9)],
        lambda: {"table": torch.randn(B, 10)},
        ["distances"],
    ),
    "a table whose negative entries count from its end": (
        lambda c: lambda s, b, h, i, j: s + c["w"][(i - j).clamp(-4, 4)] + c["pairs"][(i % 3) - (j % 3), h],
        lambda: {"w": torch.randn(9), "pairs": torch.randn(5, H)},
        ["distances", "pairs"],
    ),
    "biases by distance of several kinds": (
        lambda c: lambda s, b, h, i, j: s + c["w"][(i - j).abs()] - torch.where(i >= j, 0.0, 0.5 * h),
        lambda: {"w": torch.randn(N)},
        ["distances"],
    ),
    "a bias by distance beside one of keys": (
        lambda c: lambda s, b, h, i, j: s + (c["w"][(i - j).abs()] + c["bias"][j]),
        lambda: {"w": torch.randn(N), "bias": torch.randn(N)},
        ["keys", "distances"],
    ),
    "a bias of pairs in another order": (
        lambda c: lambda s, b, h, i, j: s + c["bias"][j, h, i],
        lambda: {"bias": torch.randn(N + 3, H, N + 5)},
        ["pairs"],
    ),
    "a bias of computed pairs": (
        lambda c: lambda s, b, h, i, j: s + c["bias"][i % 5, j % 3] * (i * j).to(torch.float32).sqrt(),
        lambda: {"bias": torch.randn(5, 3)},
        ["pairs"],
    ),
    "a bias of whole numbers": (lambda c: lambda s, b, h, i, j: s + i * j // 100, dict, ["pairs"]),
    "a scaled sum of biases": (
        lambda c: lambda s, b, h, i, j: (s + c["bias"][i, j] - c["keys"][j]) * 0.5,
        lambda: {"bias": torch.randn(N, N), "keys": torch.randn(N)},
        ["scale", "keys", "pairs"],
    ),
    "-inf by where()": (
        lambda c: lambda s, b, h, i, j: torch.where((i - j).abs() < 5, s + c["bias"][j], -float("inf")),
        lambda: {"bias": torch.randn(N)},
        ["keys", "masks"],
    ),
    "-inf of a tensor, first": (
        lambda c: lambda s, b, h, i, j: torch.where(j > i, torch.tensor(-torch.inf), s),
        dict,
        ["masks"],
    ),
    "-inf like the score": (
        lambda c: lambda s, b, h, i, j: torch.where(j > i, torch.full_like(s, -torch.inf), s),
        dict,
        ["masks"],
    ),
    "-inf in a bias": (
        lambda c: lambda s, b, h, i, j: s + torch.where(i % 7 == j % 7, c["bias"][h], -torch.inf),
        lambda: {"bias": torch.randn(H)},
        ["rows", "masks"],
    ),
    "-inf where a matrix says": (
        lambda c: lambda s, b, h, i, j: s.masked_fill(c["hidden"][i, j], -torch.inf),
        lambda: {"hidden": torch.rand(N, N) < 0.7},
        ["masks"],
    ),
    "-inf in a sum of scores": (
        lambda c: lambda s, b, h, i, j: s / 2 + torch.where(i >= j, s, -torch.inf),
        dict,
        ["scale", "masks"],
    ),
    "-inf inside one of two": (
        lambda c: lambda s, b, h, i, j: torch.where(h < 2, torch.where(i >= j, s, -torch.inf), s + c["bias"][j]),
        lambda: {"bias": torch.randn(N)},
        ["keys", "masks"],
    ),
    "one of two biases": (
        lambda c: lambda s, b, h, i, j: torch.where(i // 8 == j // 8, s + c["near"][h], s + c["far"][b, j]),
        lambda: {"near": torch.randn(H), "far": torch.randn(B, N)},
        ["pairs"],
    ),
}


@pytest.mark.parametrize("name", FORMS)
def test_each_form(name):
    make, captured, becomes = FORMS[name]
    captured = captured()
    frozen = [each for each in ("slopes", "cap") if each in captured]
    assert parts_of(make, learning(captured, frozen)) == becomes
    check(make, captured, close=1e-5, frozen=frozen)


@pytest.mark.parametrize("name", [name for name in FORMS if name != "nothing"])
def test_each_form_in_double_precision(name):
    make, captured, _ = FORMS[name]
    captured = {name: each.double() if each.is_floating_point() else each for name, each in captured().items()}
    check(
        make,
        captured,
        close=1e-12,
        frozen=[each for each in ("slopes", "cap") if each in captured],
        dtype=torch.float64,
    )


@pytest.mark.parametrize(
    "name", ["ALiBi", "ALiBi of a number", "a bias by distance and batch", "-inf by where()", "T5"]
)
@pytest.mark.parametrize(("rows", "columns"), [(23, 40), (40, 17)])
def test_rows_and_columns_that_differ_are_aligned_at_the_first(name, rows, columns):
    make, captured = (CASES[name].make, CASES[name].captured) if name in CASES else FORMS[name][:2]
    check(make, captured(), close=1e-5, frozen=["slopes"], rows=rows, columns=columns)


@pytest.mark.parametrize(
    "name", ["pair bias", "Doge", "head gates", "softcap", "relative table", "norms of keys", "padding", "local_tables"]
)
def test_query_heads_that_share_keys(name):
    """h is the query head."""
    case = CASES.get(name, CASES["Inkling"])
    check(case.make, case.captured(), close=1e-5, key_heads=2)


def test_a_factor_of_key_and_query_head_is_a_function_where_heads_share_keys():
    check(lambda c: lambda s, b, h, i, j: s * c["gate"][h, j], {"gate": torch.rand(H, N)}, close=1e-5, key_heads=2)


FUNCTIONS_OF_SCORES = {
    "a power": lambda s, b, h, i, j: s**2,
    "a condition on the score": lambda s, b, h, i, j: torch.where(s > 0, s, s * 2),
    "clamp": lambda s, b, h, i, j: s.clamp(max=1.0, min=-0.5),
    "a quotient by the score": lambda s, b, h, i, j: 1 / (1 + s * s),
    "tanh of a sum": lambda s, b, h, i, j: torch.tanh(s + 1),
    "tanh times a number of the head": lambda s, b, h, i, j: h * torch.tanh(s),
    "a sum of two functions": lambda s, b, h, i, j: s + torch.tanh(s),
    "one of two functions": lambda s, b, h, i, j: torch.where(h < 1, s, torch.tanh(s)),
    "activations": lambda s, b, h, i, j: (
        torch.relu(s) + torch.sigmoid(s) + torch.nn.functional.gelu(s, approximate="tanh") + torch.erf(s)
    ),
    "softplus and logarithms": lambda s, b, h, i, j: torch.nn.functional.softplus(s) + torch.log1p(s.square()),
    "powers of two": lambda s, b, h, i, j: (
        torch.exp2(s * 0.5) - torch.expm1(-s.abs()) + s.sign() * torch.rsqrt(1 + s * s)
    ),
    "bits of conditions": lambda s, b, h, i, j: torch.where(((i ^ 0) >= 0) & ~(s > 1) | (i == j), s.sin(), s.cos()),
    "whole numbers": lambda s, b, h, i, j: s * s + (i // 3 - j % 5) * 0.1 + torch.trunc((i - j) / 3) * 0.01,
    "masked_fill": lambda s, b, h, i, j: (s * s).masked_fill(i < j, -torch.inf),
}


@pytest.mark.parametrize("name", FUNCTIONS_OF_SCORES)
def test_functions_of_scores(name):
    check(lambda c: FUNCTIONS_OF_SCORES[name], {}, close=2e-5)


READS = {
    "documents": (
        lambda c: lambda s, b, h, i, j: torch.where(c["ids"][b, i] == c["ids"][b, j], s * s, s),
        lambda: {"ids": torch.randint(0, 3, (B, N))},
    ),
    "two tables": (
        lambda c: lambda s, b, h, i, j: torch.tanh(s) * c["first"][h, (i + j) // 2] + c["second"][j, i],
        lambda: {"first": torch.randn(H, N), "second": torch.randn(N, N)},
    ),
    "an index below 0": (
        lambda c: lambda s, b, h, i, j: s * s + c["table"][(i + j) % N - N],
        lambda: {"table": torch.randn(N)},
    ),
    "booleans": (
        lambda c: lambda s, b, h, i, j: torch.where(c["kept"][i, j] | c["first"][j], s.exp(), s),
        lambda: {"kept": torch.randn(N, N) > 0, "first": torch.randn(N) > 0},
    ),
    "an index by a tensor": (
        lambda c: lambda s, b, h, i, j: s * s + c["values"][c["kinds"][i, j], h],
        lambda: {"values": torch.randn(3, H), "kinds": torch.randint(0, 3, (N, N))},
    ),
}


@pytest.mark.parametrize("name", READS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_functions_read_what_they_capture(name, dtype):
    make, captured = READS[name]
    captured = {name: each.to(dtype) if each.is_floating_point() else each for name, each in captured().items()}
    check(make, captured, close=2e-5 if dtype is torch.float32 else 1e-12, frozen=captured.keys(), dtype=dtype)


LEARNS = {
    "a gate of heads": (lambda c: lambda s, b, h, i, j: torch.relu(s) * c["of"][h], (H,)),
    "a number": (lambda c: lambda s, b, h, i, j: s * torch.sigmoid(s * c["of"]), ()),
    "a value of keys": (lambda c: lambda s, b, h, i, j: s * s * torch.sigmoid(c["of"][b, j]), (B, N)),
    "a value of queries": (lambda c: lambda s, b, h, i, j: torch.tanh(s + c["of"][i]), (N,)),
    "a value of each pair": (lambda c: lambda s, b, h, i, j: torch.tanh(s * c["of"][b, h, i, j]), (B, H, N, N)),
    "a product of two tokens": (lambda c: lambda s, b, h, i, j: s * s + s * (c["of"][i] * c["of"][j]), (N,)),
    "a table by distance": (
        lambda c: lambda s, b, h, i, j: torch.where(s > 0, s, s * c["of"][h, i - j + N - 1]),
        (H, 2 * N - 1),
    ),
    "beside a function of the distance": (
        lambda c: lambda s, b, h, i, j: s * s.abs() * c["of"][h] * (1 + 0.1 * torch.cos((i - j).to(s.dtype))),
        (H,),
    ),
}


@pytest.mark.parametrize("name", LEARNS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_one_value_of_a_function_learns(name, dtype):
    make, shape = LEARNS[name]
    close = 2e-5 if dtype is torch.float32 else 1e-12
    check(make, {"of": torch.randn(shape, dtype=dtype)}, close=close, dtype=dtype)


def test_gradients_through_functions_repeat_with_several_threads():
    threads, qkv = torch.get_num_threads(), tensors(rows=300, columns=300)
    gate = torch.randn(H, requires_grad=True)

    def found():
        o = flex_attention(*qkv, lambda s, b, h, i, j: torch.relu(s) * gate[h])
        return torch.autograd.grad(o.square().sum(), [*qkv, gate])

    torch.set_num_threads(4)
    try:
        first, again = found(), found()
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda s, b, h, i, j: torch.special.i0(s), "what cannot be read, as .*i0"),
        (lambda s, b, h, i, j: torch.lerp(s, s, 0.5), r"lerp\(\) of the score"),
        (lambda s, b, h, i, j: torch.add(s, i, alpha=2), r"add\(\) of the score with alpha"),
        (lambda s, b, h, i, j: s.int() & 1, r"the bits of a number, by and\(\)"),
        (lambda s, b, h, i, j: i + j, "scores that do not depend on the product of q and k"),
        (lambda s, b, h, i, j: s + torch.eye(N)[i], "a vector for each score"),
        (lambda s, b, h, i, j: s if i > j else -s, "what cannot be read, as the function branches on an index"),
        (lambda s, b, h, i, j: s if s > 0 else -s, "what cannot be read, as the function branches on an index"),
    ],
)
def test_what_is_refused_is_named(change, what):
    with pytest.raises(
        NotImplementedError, match=rf"^score_mod computes .*{what}.* \(.*<lambda>\): flashmask computes"
    ):
        flex_attention(*tensors(), change)


def test_two_values_that_learn_in_one_function_are_refused():
    a, c = torch.randn(H, requires_grad=True), torch.randn(N, requires_grad=True)
    with pytest.raises(NotImplementedError, match="two captured tensors with gradients"):
        flex_attention(*tensors(), lambda s, b, h, i, j: torch.relu(s * c[j]) * a[h])


def test_five_captured_tensors_and_numbers_beyond_float32_are_refused():
    many = [torch.randn(N, N) for _ in range(6)]
    with pytest.raises(NotImplementedError, match="a function of more than 4 captured tensors"):
        flex_attention(*tensors(), lambda s, b, h, i, j: s * s + sum(each[j, (i + j) % N] for each in many))
    large = torch.full((N,), 2**24)
    with pytest.raises(
        NotImplementedError, match="whole numbers of 16777216, of which float32 does not hold every one"
    ):
        flex_attention(*tensors(), lambda s, b, h, i, j: s * s + large[(i * j) % N])


def test_what_gathers_long_rows_is_evaluated_when_it_is_needed(monkeypatch):
    monkeypatch.setattr("flashmask._flex.symbols._LARGEST_GATHER", 1)
    captured = {"q": torch.randn(B, N, 4), "k": torch.randn(N, 4), "by": torch.randn(4)}

    def make(c):
        return lambda s, b, h, i, j: s * (c["q"][b, i] * c["by"]).sum(-1) + (c["k"][j] * c["by"]).sum(-1)

    check(make, captured, close=1e-5)


def test_rows_that_a_bias_hides_see_nothing():
    bias = torch.randn(N).index_fill(0, torch.tensor([3, 9]), -torch.inf)
    check(lambda c: lambda s, b, h, i, j: s + c["bias"][i], {"bias": bias}, close=1e-5, frozen=["bias"])


def test_a_factor_of_what_is_hidden_gets_a_finite_gradient():
    """-inf times a gradient of zero is NaN in the dense formula."""
    gate, qkv = torch.rand(H, requires_grad=True), tensors()

    def change(s, b, h, i, j):
        return (s + torch.where(i >= j, 0.5, -torch.inf)) * gate[h]

    o, lse = flex_attention(*qkv, change, return_lse=True)
    expected = flex_formula(*qkv, lambda s, b, h, i, j: (s + 0.5) * gate[h].double(), torch.ones(N, N).tril().bool())
    (found,), (wanted,) = (gradients(*each, [gate]) for each in ((o, lse), expected))
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


def test_a_captured_bias_is_viewed_and_a_computed_one_keeps_its_dtype():
    from flashmask._flex.recipe import bias_arguments

    bias = torch.randn(B, N, H, N, dtype=torch.bfloat16)
    space = Space((B, H, N, N), "cpu")

    def of(change):
        recipe = recognise(change, space, torch.float32, False)
        return bias_arguments(recipe, space, torch.float32)["bias"]

    viewed = of(lambda s, b, h, i, j: s + bias[b, i, h, j])
    assert viewed.shape == (B, H, N, N) and viewed.data_ptr() == bias.data_ptr()
    assert of(lambda s, b, h, i, j: s + bias[b][i][h, j]).data_ptr() == bias.data_ptr()
    assert of(lambda s, b, h, i, j: s + bias[b, i, h, j] * (i + j)).dtype is torch.bfloat16
    shared = of(lambda s, b, h, i, j: s + bias[0, i, 0, j])  # 0 is no symbol: gathered, for one batch entry and head
    assert shared.untyped_storage().nbytes() < N * N * 4 + 100


def test_gradients_of_captured_tensors_repeat_with_several_threads():
    tokens, threads = 512, torch.get_num_threads()
    q, k, v = tensors(batch=1, query_heads=1, key_heads=1, rows=tokens, columns=tokens)
    table = torch.randn(3, requires_grad=True)
    kinds = torch.randint(0, 3, (tokens, tokens))

    def gradient():
        o = flex_attention(q, k, v, lambda s, b, h, i, j: s + table[kinds[i, j]])
        return torch.autograd.grad(o.square().sum(), table)[0]

    torch.set_num_threads(4)
    try:
        assert all(torch.equal(gradient(), first) for first in [gradient()] for _ in range(4))
    finally:
        torch.set_num_threads(threads)


def test_captured_tensors_in_bfloat16_sum_their_gradients_in_float32():
    weight = torch.zeros(1, dtype=torch.bfloat16, requires_grad=True)
    q, k, v = (each.detach() for each in tensors())
    _, lse = flex_attention(q, k, v, lambda s, b, h, i, j: s + weight[(i + j) // (2 * N)] * j, return_lse=True)
    exact = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    _, expected = flex_formula(q, k, v, lambda s, b, h, i, j: s + exact[(i + j) // (2 * N)] * j)
    (found,), (wanted,) = (torch.autograd.grad(x.sum(), w) for x, w in ((lse, weight), (expected, exact)))
    assert found.dtype is torch.bfloat16
    torch.testing.assert_close(found.double(), wanted, rtol=2**-7, atol=0)


def test_a_computed_bias_of_pairs_beyond_one_gibibyte_is_refused():
    q = torch.zeros(1, 8, 1, 8).expand(-1, -1, 8192, -1)
    bias = torch.zeros(3)
    with pytest.raises(NotImplementedError, match=r"a bias of each pair that it computes, 2\.0 GiB for these sizes; "):
        flex_attention(q, q, q, lambda s, b, h, i, j: s + bias[(i * j) % 3] * h)


def test_a_computed_bias_is_as_large_as_what_it_tells_apart(monkeypatch):
    monkeypatch.setattr("flashmask._flex.recipe.LARGEST", 4 * N * N)
    qkv, bias = tensors(), torch.zeros(B, H, N, N)
    flex_attention(*qkv, lambda s, b, h, i, j: s + torch.sqrt(i * j))
    flex_attention(*qkv, lambda s, b, h, i, j: s + bias[b, h, i, j])
    for change in (lambda s, b, h, i, j: s + torch.sqrt(i * j + h), lambda s, b, h, i, j: s + bias[b, 0, i, j] * i):
        with pytest.raises(NotImplementedError, match="a bias of each pair that it computes"):
            flex_attention(*qkv, change)


def test_biases_in_bfloat16_are_scaled_and_added_in_float32():
    first, second = (torch.randn(N, N, dtype=torch.bfloat16) for _ in range(2))
    qkv = [each.detach() for each in tensors()]

    for change in (
        lambda s, b, h, i, j: (s + first[i, j]) * 0.3,
        lambda s, b, h, i, j: s + first[i, j] + second[i, j],
    ):
        found, expected = flex_attention(*qkv, change), flex_formula(*qkv, change)[0]
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


def test_a_captured_tensor_elsewhere_is_refused():
    bias = torch.zeros(N, device="meta")
    with pytest.raises(ValueError, match=r"a captured tensor is on meta, the mask on cpu; move it there"):
        flex_attention(*tensors(), lambda s, b, h, i, j: s + bias[j])


def test_an_index_out_of_range_is_an_error():
    bias = torch.zeros(N - 1)
    for change in (lambda s, b, h, i, j: s + bias[j], lambda s, b, h, i, j: s + bias[:, None].expand(-1, N)[i, j]):
        with pytest.raises(IndexError):
            flex_attention(*tensors(), change)
