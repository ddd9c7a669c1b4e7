# SPDX-License-Identifier: Apache-2.0
"""flashmask.jax on a GPU: the bits of PyTorch's calls there, masks that change, plans and dropout. scripts/test-gpu."""

import ctypes
import functools

import pytest

jax = pytest.importorskip("jax", reason="scripts/test jax runs this where JAX is")
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
from attention_oracle import softmax_attention  # noqa: E402
from jax_cases import N, assert_same_bits, bias_of, inputs, results, results_under, sinks_of  # noqa: E402
from jax_document_bits import (  # noqa: E402
    both_ways,
    documents_that_differ,
    every_third,
    given_to,
    of_every_third,
    under,
)
from mask_families import FAMILIES  # noqa: E402
from torch_cases import as_torch, operand, our_torch, results_of_torch  # noqa: E402

import flashmask  # noqa: E402
import flashmask.jax as fm  # noqa: E402
from flashmask import masks, scores  # noqa: E402
from flashmask._abi.library import call as call_library  # noqa: E402
from flashmask._abi.problem import make_problem  # noqa: E402

pytestmark = pytest.mark.skipif(jax.default_backend() != "gpu", reason="JAX finds no GPU")


def given(**sizes):
    return inputs(**{"dim": 64, "value_dim": 64, "dtype": jnp.bfloat16} | sizes)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", FAMILIES)
def test_bits_are_those_of_torch_under_every_mask(name, dtype):
    mask = FAMILIES[name]()
    arrays = given(rows=mask.shape.rows, columns=mask.shape.columns, dtype=dtype)
    expected = results_of_torch(our_torch(mask, deterministic=True), arrays, sinks_of(), device="cuda")
    assert_same_bits(results_under(operand(mask), arrays, sinks_of(), deterministic=True), expected)

    def constant(q, k, v, sinks):
        return fm.attention(q, k, v, mask, sinks=sinks, return_lse=True, deterministic=True)

    run = jax.jit(lambda *every: results(constant, *every))
    for _ in range(2):  # made, then kept
        assert_same_bits(run(*arrays, sinks_of()), expected)


@pytest.mark.parametrize(("dim", "layout"), [(36, "bshd"), (128, "bhsd"), (300, "bshd")])
def test_head_dims_and_layouts(dim, layout):
    mask, arrays = FAMILIES["causal_document"](), given(dim=dim, value_dim=dim)
    if layout == "bhsd":
        arrays = tuple(array.swapaxes(1, 2) for array in arrays)
    options = {"layout": layout, "deterministic": True}
    expected = results_of_torch(our_torch(mask, **options), arrays, device="cuda")
    assert_same_bits(results_under(operand(mask), arrays, **options), expected)


def test_changes_of_scores():
    mask, arrays, bias = FAMILIES["causal_document"](), given(), bias_of()

    def call(q, k, v, bias):
        score = scores.softcap(2.0) | scores.distance(bias[:, :, :1, :33], 3)
        return fm.attention(q, k, v, mask, score=score, return_lse=True, deterministic=True)

    def of_torch(q, k, v, bias):
        score = scores.softcap(2.0) | scores.distance(bias[:, :, :1, :33], 3)
        return flashmask.attention(q, k, v, mask, score=score, return_lse=True, deterministic=True)

    expected = results_of_torch(of_torch, arrays, bias, device="cuda", name="bias")
    assert_same_bits(jax.jit(lambda *every: results(call, *every))(*arrays, bias), expected)


def test_row_indices_may_change_between_runs_of_one_program():
    arrays = given()

    @jax.jit
    def layers(q, k, v, ends):
        mask = fm.from_cu_seqlens(ends, N)
        plan = fm.plan(mask, q, k, v, deterministic=True)
        assert plan.memory is not None
        call = lambda **mask: results(  # noqa: E731
            lambda *every: fm.attention(*every, return_lse=True, deterministic=True, **mask), q, k, v
        )
        return call(mask=mask), call(plan=plan)

    for lengths in ([31, 20, 19], [10, 10, 50], [70, 0, 0], [31, 20, 19]):
        mask = masks.causal_document(lengths, N)
        expected = results_of_torch(our_torch(mask, deterministic=True), arrays, device="cuda")
        for found in layers(*arrays, jnp.cumsum(jnp.array([0, *lengths]))):
            assert_same_bits(found, expected)


PACK = [100, 257, 1, 500]


@pytest.mark.parametrize("dim", [36, 128])
def test_invariant_documents_have_the_bits_that_they_have_alone(dim):
    tokens, mask = sum(PACK), masks.causal_document(PACK)
    arrays = given_to(tokens, jnp.bfloat16, dim=dim)
    on_the_grid = jax.jit(both_ways(under(mask, invariant=False, deterministic=True)))
    assert documents_that_differ(on_the_grid(*arrays), arrays, PACK)
    constant = jax.jit(both_ways(under(mask)))
    for _ in range(2):  # made, then kept
        assert documents_that_differ(constant(*arrays), arrays, PACK) == []
    in_bits = jax.jit(both_ways(under(every_third(PACK))))(*arrays)
    assert documents_that_differ(in_bits, arrays, PACK, of_every_third) == []

    def of_ends(ends, *arrays):
        mask = fm.from_cu_seqlens(ends, tokens)
        plan = fm.plan(mask, *arrays[:3], invariant=True)
        return both_ways(under(mask))(*arrays), both_ways(under(plan=plan))(*arrays)

    packs = [PACK, PACK[::-1]]
    ends = jnp.stack([jnp.cumsum(jnp.array([0, *pack])) for pack in packs])
    run = jax.jit(of_ends)
    one_by_one = [run(each, *arrays) for each in ends]
    joined = jax.jit(jax.vmap(lambda ends: both_ways(under(fm.from_cu_seqlens(ends, tokens)))(*arrays)))(ends)
    for i, pack in enumerate(packs):
        for found in (*one_by_one[i], [x[i] for x in joined]):
            assert documents_that_differ(found, arrays, pack) == []


def test_invariant_calls_have_the_bits_of_torch():
    mask, arrays = FAMILIES["causal_document"](), given()
    expected = results_of_torch(our_torch(mask, invariant=True), arrays, device="cuda")
    call = lambda *a: fm.attention(*a, mask, return_lse=True, invariant=True)  # noqa: E731
    assert_same_bits(jax.jit(lambda *a: results(call, *a))(*arrays), expected)


def test_invariant_calls_are_refused_where_documents_cannot_be_counted():
    (q, k, v), mask = given(), FAMILIES["causal_document"]()
    visible = jnp.asarray(mask.to_dense())
    of_entries = masks.stack_batch([mask, masks.causal(N, N)])
    attend = functools.partial(fm.attention, invariant=True)
    mapped = jax.vmap(lambda q: attend(q, k, v, of_entries))
    for call, given_arrays in (
        (attend, (q, k, v, visible)),
        (attend, (q, k, v, fm.from_segment_ids(jnp.zeros(N, int)))),
        (mapped, (q[None],)),
    ):
        with pytest.raises(Exception, match="it must be known at most how many documents"):
            jax.jit(call).lower(*given_arrays).compile()
    with pytest.raises(ValueError, match="most_documents is 0"):
        fm.plan(fm.from_segment_ids(jnp.zeros(N, int)), q, k, v, invariant=True)
    with pytest.raises(Exception, match="invariant and a bias of scores were asked for together on cuda:0"):
        attend(q, k, v, mask, alibi_slopes=jnp.ones(4)).block_until_ready()


def test_dropout_is_that_of_the_seed_that_a_key_says():
    (q, k, v), key = given(), jax.random.key(7)
    o = jax.jit(lambda key: fm.attention(q, k, v, masks.causal(N, N), dropout=0.25, key=key))(key)
    low, high = (int(word) for word in jax.random.key_data(key))
    problem = make_problem([q.shape, k.shape, v.shape], "bfloat16", None, 0.25)
    kept = np.empty((2, 4, N, N), np.uint8)
    address = kept.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
    call_library("dropout_expand", ctypes.byref(problem.struct()), low | high << 32, 0, address, kept.size)
    visible = torch.ones(1, 1, N, N, dtype=torch.bool).tril()
    exact = [as_torch(array, torch.float64) for array in (q, k, v)]
    expected, _ = softmax_attention(*exact, visible=visible, kept=torch.from_numpy(kept), keep_scale=1 / 0.75)
    np.testing.assert_allclose(np.asarray(o, np.float64), expected, atol=3e-2)


def test_linear_attention_has_the_bits_of_pytorchs_call():
    arrays = [*given(heads=4, kv_heads=4)[:3]]
    gates = -0.1 * jax.random.uniform(jax.random.key(0), (2, *arrays[0].shape[:3]))
    arrays += [*gates]
    mask = masks.causal_document([N // 3, N - N // 3])
    tensors = [as_torch(array, device="cuda").requires_grad_() for array in arrays]
    expected = flashmask.linear_attention(*tensors, mask, normalize=True)
    gradients = torch.autograd.grad(expected.sum(), tensors)
    o, pull = jax.vjp(lambda *x: fm.linear_attention(*x, mask, normalize=True), *arrays)
    assert_same_bits([o, *pull(jnp.ones_like(o))], [x.detach().cpu() for x in (expected, *gradients)])


def test_float32_is_refused_when_a_program_is_compiled():
    with pytest.raises(Exception, match="q, k and v are float32 and the program is compiled for a GPU"):
        jax.jit(fm.attention).lower(*inputs()).compile()


def test_a_batch_over_two_gpus_gathers_nothing():
    if len(jax.devices()) < 2:
        pytest.skip("one GPU here")
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("data",))
    by_batch = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    arrays, indices = given(), operand(FAMILIES["causal_document"]())
    expected = results_under(indices, arrays, deterministic=True)
    split = [jax.device_put(array, by_batch) for array in arrays]
    assert "all-gather" not in results_under.lower(indices, split, deterministic=True).compile().as_text()
    assert_same_bits(results_under(indices, split, deterministic=True), expected)
