# SPDX-License-Identifier: Apache-2.0
"""flex_attention() under torch.compile: the same bits, one graph where the mask is made outside, else a break."""

import pytest

torch = pytest.importorskip("torch", reason="flex_attention takes tensors")

from flex_oracle import tensors  # noqa: E402
from torch._dynamo.testing import CompileCounterWithBackend  # noqa: E402
from torch.nn.attention import flex_attention as flex  # noqa: E402

from flashmask import flex_attention, masks  # noqa: E402

TOKENS = 40


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


def causal(b, h, i, j):
    return i >= j


def block_mask():
    return flex.create_block_mask(causal, None, None, TOKENS, TOKENS, device="cpu")


def outputs(function, leaves, **call):
    """o and lse, then the gradients."""
    o, lse = function(*leaves[:3], return_lse=True, **call)
    return [o, lse, *torch.autograd.grad(o.sum() + lse.sum(), leaves)]


@pytest.mark.parametrize(
    ("mask", "biased"), [(None, True), (block_mask, False), (lambda: masks.causal(TOKENS, TOKENS), True)]
)
def test_the_compiled_function_gives_the_same_bits(mask, biased):
    bias = torch.randn(4, TOKENS, requires_grad=True)

    def change(s, b, h, i, j):
        return torch.where(i - j < 9, s + bias[h, j], -torch.inf)

    leaves = [*tensors(), bias] if biased else tensors()
    call = {"block_mask": mask and mask(), "score_mod": change if biased else None}
    compiled = torch.compile(flex_attention, backend="eager")
    for a, b in zip(outputs(compiled, leaves, **call), outputs(flex_attention, leaves, **call), strict=True):
        assert torch.equal(a, b)


def made_outside():
    """Masks of each kind that an operator takes."""
    yield masks.causal(TOKENS, TOKENS)
    yield masks.from_mask_mod(causal, None, None, TOKENS, TOKENS)
    yield masks.from_block_mask(block_mask())
    yield masks.from_cu_seqlens(torch.tensor([0, 9, TOKENS]), TOKENS)
    yield None


@pytest.mark.skipif(not hasattr(flex, "AuxRequest"), reason="this PyTorch's FlexAttention has no AuxRequest")
def test_a_mask_made_outside_makes_one_graph():
    def layer(q, k, v, mask):
        options = {"kernel_options": {"BLOCK_M": 64}, "return_aux": flex.AuxRequest(lse=True)}
        return flex_attention(q.sin(), k, v, None, mask, **options)

    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(layer, fullgraph=True, backend=counter)
    leaves = tensors()
    for mask in made_outside():
        found, expected = compiled(*leaves, mask), layer(*leaves, mask)
        assert torch.equal(found[0], expected[0]) and torch.equal(found[1].lse, expected[1].lse)
        grads = [torch.autograd.grad(o.sum() + aux.lse.sum(), leaves) for o, aux in (found, expected)]
        assert all(map(torch.equal, *grads))
    assert counter.frame_count <= 4  # for a Mask of one size, of any, RowIndices and None


@pytest.mark.parametrize("call", [{"block_mask": block_mask()}, {"score_mod": lambda s, b, h, i, j: s + i - j}])
def test_what_is_read_on_the_host_breaks_the_graph(call):
    def layer(q, k, v):
        return flex_attention(q.sin(), k, v, **call).cos()

    qkv = tensors()
    assert torch.equal(torch.compile(layer, backend="eager")(*qkv), layer(*qkv))
    torch._dynamo.reset()
    with pytest.raises(
        torch._dynamo.exc.Unsupported, match="flashmask makes masks and plans, and reads score_mods, on the"
    ):
        torch.compile(layer, fullgraph=True, backend="eager")(*qkv)
