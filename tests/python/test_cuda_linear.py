# SPDX-License-Identifier: Apache-2.0
"""linear_attention() on a GPU against the same on the CPU in float32."""

import pytest
import torch
from cuda_device import needs_gpu

import flashmask
from flashmask import masks

pytestmark = needs_gpu


def inputs(length, batch=2, heads=4, key_heads=2, dims=(64, 128), dtype=torch.bfloat16):
    generator = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(*shape, generator=generator)

    q, k = (normal(batch, length, key_heads, dims[0]).to(dtype) for _ in range(2))
    v = normal(batch, length, heads, dims[1]).to(dtype)
    log_forget = -torch.nn.functional.softplus(-3 - normal(batch, length, heads))
    return [q, k, v, log_forget, normal(batch, length, heads) - 2]


def value_and_gradients(given, mask, **options):
    leaves = [t.detach().requires_grad_() for t in given]
    o = flashmask.linear_attention(*leaves, mask, **options)
    grad = torch.randn(o.shape, generator=torch.Generator().manual_seed(1)).to(o)
    return [o, *torch.autograd.grad(o, leaves, grad)]


def assert_close(found, expected, bound=1.2e-2):
    for a, b in zip(found, expected, strict=True):
        assert a.is_cuda
        assert (a.cpu().double() - b.double()).abs().max() <= bound * b.double().abs().max()


MASKS = {
    "causal": (None, 300),
    "documents": (masks.causal_document([30, 1, 1270], 1310), 1310),
    "shared question": (masks.shared_question([(140, [30, 1, 20])], 200), 200),
}


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", MASKS)
def test_values_and_gradients_are_those_of_the_cpu(name, dtype, normalize):
    mask, length = MASKS[name]
    given = inputs(length, dtype=dtype)
    found = value_and_gradients([t.cuda() for t in given], mask, normalize=normalize)
    floats = [t.float() for t in given]
    assert found[0].dtype is dtype
    assert_close(found, value_and_gradients(floats, mask, normalize=normalize))


def test_states_pass_between_calls():
    given = [t.cuda() for t in inputs(300)]
    whole, last = flashmask.linear_attention(*given, normalize=True, output_final_state=True)
    parts = [[t[:, a:b] for t in given] for a, b in ((0, 100), (100, 300))]
    first, state = flashmask.linear_attention(*parts[0], normalize=True, output_final_state=True)
    second, end = flashmask.linear_attention(*parts[1], normalize=True, initial_state=state, output_final_state=True)
    assert_close([torch.cat([first, second], 1), *end], [t.cpu() for t in (whole, *last)])


def test_odd_strides_streams_and_masks_on_the_gpu():
    given = [t.cuda() for t in inputs(96)]
    expected = value_and_gradients(given, masks.causal_document([30, 66], 96))
    rows = masks.from_cu_seqlens(torch.tensor([0, 30, 96], dtype=torch.int32, device="cuda"), 96)
    moved = [torch.empty(*t.shape[:-1], t.shape[-1] + 1, dtype=t.dtype, device="cuda")[..., 1:].copy_(t) for t in given]
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        found = value_and_gradients(moved, rows)
    torch.cuda.synchronize()
    for a, b in zip(found, expected, strict=True):
        assert torch.equal(a, b)


def test_a_compiled_function_gives_the_same_bits():
    given = [t.cuda() for t in inputs(130)]
    mask = masks.causal_document([30, 100], 130)
    compiled = torch.compile(lambda *t: flashmask.linear_attention(*t, mask), fullgraph=True)
    assert torch.equal(compiled(*given), flashmask.linear_attention(*given, mask))


def test_a_graph_replays_with_new_values():
    given = [t.cuda() for t in inputs(130)]
    mask = masks.causal_document([30, 100], 130)
    flashmask.linear_attention(*given, mask)  # makes the plan, which a capture cannot
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        o = flashmask.linear_attention(*given, mask)
    given[0].copy_(torch.randn_like(given[0]))
    graph.replay()
    assert torch.equal(o, flashmask.linear_attention(*given, mask))


def test_what_is_not_served_is_named():
    q, k, v, *gates = (t.cuda() for t in inputs(40))
    with pytest.raises(NotImplementedError, match="GPUs compute bfloat16 and float16"):
        flashmask.linear_attention(q.float(), k.float(), v.float(), *gates)
    with pytest.raises(NotImplementedError, match="key_dim is 20; expected a multiple of 8 up to 256"):
        flashmask.linear_attention(q[..., :20], k[..., :20], v, *gates)
