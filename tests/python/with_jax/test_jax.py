# SPDX-License-Identifier: Apache-2.0
"""flashmask.jax on a CPU: the bits of PyTorch's calls under every family of masks, and every transform of JAX.

scripts/test jax runs this with the oldest and the newest JAX that are supported.
"""

import os

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"

import functools
import re
import subprocess
import sys
import threading

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="scripts/test jax runs this where JAX is")
import jax.numpy as jnp  # noqa: E402
import torch  # noqa: E402
from jax import lax  # noqa: E402
from jax.sharding import Mesh, NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as Spec  # noqa: E402
from mask_families import FAMILIES, N  # noqa: E402

import flashmask  # noqa: E402
import flashmask.jax as fm  # noqa: E402
from flashmask import masks  # noqa: E402

DOCUMENTS = [31, 0, 20, 19]


def inputs(batch=2, rows=N, columns=N, heads=4, kv_heads=2, dim=16, value_dim=24, dtype=jnp.float32):
    """q, k, v. What needs no program of XLA's is made by NumPy: each takes a tenth of a second to compile."""
    random = np.random.default_rng(0)
    shapes = (batch, rows, heads, dim), (batch, columns, kv_heads, dim), (batch, columns, kv_heads, value_dim)
    return tuple(jnp.asarray(random.standard_normal(shape).astype(dtype)) for shape in shapes)


def sinks_of(heads=4):
    return jnp.asarray(np.linspace(-1, 2, heads, dtype=np.float32))


def weights(shape, dtype):
    """Numbers to weigh a result with, so that its gradient is not the same everywhere."""
    return np.cos(np.arange(np.prod(shape), dtype=np.float32)).reshape(shape).astype(dtype)


def results(call, *arrays):
    """o, lse, and the gradients of all arrays, of a function that returns o and lse."""
    outputs, pull = jax.vjp(call, *arrays)
    o, lse = outputs
    of_lse = jnp.where(jnp.isfinite(lse), weights(lse.shape, lse.dtype), 0)
    return [o, lse, *pull((weights(o.shape, o.dtype), of_lse))]


@functools.partial(jax.jit, static_argnames=("layout", "scale"))
def results_under(mask, arrays, sinks=None, **options):
    """The same of attention under row indices or booleans, compiled once for all masks of one shape."""
    extra = () if sinks is None else (sinks,)
    return results(
        lambda q, k, v, s=None: fm.attention(q, k, v, mask, sinks=s, return_lse=True, **options), *arrays, *extra
    )


def gradients_of(call, argnums=(0, 1, 2)):
    """The compiled gradients of a loss of what `call` returns."""

    def loss(*arrays):
        return sum((each * jnp.cos(each)).sum() for each in jax.tree.leaves(call(*arrays)))

    return jax.jit(jax.grad(loss, argnums))


def operand(mask):
    """A Mask as an array that may be traced."""
    if mask.form == "bits":
        return jnp.asarray(mask.to_dense())
    values, causal = mask.to_startend_row_indices()
    return fm.RowIndices(jnp.asarray(values), causal, rows=mask.shape.rows)


def as_torch(array):
    return torch.from_numpy(np.array(array, np.float32)).to(getattr(torch, str(array.dtype)))


def results_of_torch(mask, arrays, sinks=None, **options):
    """The same by PyTorch's call."""
    leaves = [as_torch(array).requires_grad_() for array in (*arrays, *(() if sinks is None else (sinks,)))]
    given = dict(zip(("q", "k", "v", "sinks"), leaves, strict=False))
    o, lse = flashmask.attention(mask=mask, return_lse=True, **given, **options)
    of_o = as_torch(weights(o.shape, jnp.dtype(str(o.dtype).removeprefix("torch."))))
    of_lse = as_torch(weights(lse.shape, np.float32)).masked_fill(~lse.isfinite(), 0)
    return [o.detach(), lse.detach(), *torch.autograd.grad([o, lse], leaves, [of_o, of_lse])]


def assert_same_bits(found, expected):
    for each, other in zip(found, expected, strict=True):
        numbers = other.float().numpy() if isinstance(other, torch.Tensor) else np.asarray(other, np.float32)
        np.testing.assert_array_equal(np.asarray(each, np.float32), numbers)


def assert_close(found, expected, atol=2e-5):
    for each, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.asarray(each), np.asarray(other), rtol=2e-5, atol=atol)


def dense(q, k, v, visible, sinks=None):
    """o and lse by the formula, in the dtype of q."""
    group = q.shape[2] // k.shape[2]
    scores = jnp.einsum("bihd,bjhd->bhij", q, jnp.repeat(k, group, 2)) * q.shape[3] ** -0.5
    visible = jnp.broadcast_to(visible, scores.shape)
    scores = jnp.where(visible, scores, -1e30)
    if sinks is not None:
        of_rows = jnp.broadcast_to(sinks[None, :, None, None], (*scores.shape[:3], 1))
        scores = jnp.concatenate([scores, of_rows], -1)
    lse = jax.nn.logsumexp(scores, -1)
    p = jnp.exp(scores - lse[..., None])[..., : k.shape[1]]
    return jnp.einsum("bhij,bjhd->bihd", jnp.where(visible, p, 0), jnp.repeat(v, group, 2)), lse


def packed(**options):
    return fm.from_cu_seqlens(jnp.cumsum(jnp.array([0, *DOCUMENTS])), N, **options)


# ---- results ----


@pytest.mark.parametrize("name", FAMILIES)
def test_bits_are_those_of_torch_under_every_mask(name):
    mask = FAMILIES[name]()
    arrays = inputs(rows=mask.shape.rows, columns=mask.shape.columns)
    assert_same_bits(results_under(operand(mask), arrays), results_of_torch(mask, arrays))


@pytest.mark.parametrize(("dtype", "layout"), [("float32", "bhsd"), ("bfloat16", "bshd"), ("float16", "bhsd")])
def test_bits_are_those_of_torch_in_every_dtype_and_layout_with_sinks(dtype, layout):
    mask, options = FAMILIES["causal_document"](), {"layout": layout, "scale": 0.3}
    arrays = inputs(dtype=dtype)
    if layout == "bhsd":
        arrays = tuple(array.swapaxes(1, 2) for array in arrays)
    found = results_under(operand(mask), arrays, sinks_of(), **options)
    assert [each.dtype for each in found] == [dtype, jnp.float32, dtype, dtype, dtype, jnp.float32]
    assert_same_bits(found, results_of_torch(mask, arrays, sinks_of(), **options))


@pytest.mark.parametrize(("heads", "kv_heads", "batch"), [(2, 2, 1), (1, 1, 2), (4, 1, 2), (0, 0, 2), (2, 1, 0)])
def test_bits_are_those_of_torch_for_any_number_of_heads(heads, kv_heads, batch):
    mask, arrays = FAMILIES["causal"](), inputs(batch=batch, heads=heads, kv_heads=kv_heads)
    assert_same_bits(results_under(operand(mask), arrays), results_of_torch(mask, arrays))


def test_results_are_those_of_the_formula():
    mask, arrays = FAMILIES["causal_document"](), inputs()
    visible = jnp.asarray(mask.to_dense())
    expected = jax.jit(lambda *a: results(lambda q, k, v, s: dense(q, k, v, visible, s), *a))(*arrays, sinks_of())
    assert_close(results_under(operand(mask), arrays, sinks_of()), expected)


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
def test_float64_is_the_formula_to_its_last_digits(layout):
    jax.config.update("jax_enable_x64", True)
    try:
        arrays = inputs(batch=1, rows=9, columns=9, dim=8, value_dim=8, dtype=jnp.float64)
        sinks, visible = sinks_of(), np.tril(np.ones((9, 9), bool))

        def call(q, k, v, s):
            turned = [x.swapaxes(1, 2) for x in (q, k, v)] if layout == "bhsd" else (q, k, v)
            o, lse = fm.attention(*turned, masks.causal(9, 9), sinks=s, layout=layout, return_lse=True)
            return (o.swapaxes(1, 2) if layout == "bhsd" else o), lse

        found = jax.jit(lambda *a: results(call, *a))(*arrays, sinks)
        assert [str(each.dtype) for each in found] == ["float64"] * 5 + ["float32"]
        formula = lambda q, k, v, s: dense(q, k, v, visible, s.astype(jnp.float64))  # noqa: E731
        expected = jax.jit(lambda *a: results(formula, *a))(*arrays, sinks)
        for each, other in zip(found[:5], expected[:5], strict=True):
            np.testing.assert_allclose(each, other, rtol=0, atol=2e-15 * max(1, np.abs(other).max()))
        np.testing.assert_allclose(found[5], expected[5], rtol=1e-6)
    finally:
        jax.config.update("jax_enable_x64", False)


@pytest.mark.parametrize("name", ["causal_document", "graph"])
def test_what_is_said_of_one_mask_in_every_way_has_the_same_bits(name):
    mask, arrays = FAMILIES[name](), inputs()
    expected = results_under(operand(mask), arrays)
    visible = mask.to_dense()
    for given in (mask, visible, visible[0, 0].tolist()):  # constants
        found = jax.jit(lambda *a, m=given: results(lambda *b: fm.attention(*b, m, return_lse=True), *a))(*arrays)
        assert_same_bits(found, expected)
    for given in (jnp.asarray(visible), jnp.asarray(visible[0, 0])):
        assert_same_bits(results_under(given, arrays), expected)


def test_masks_may_differ_per_batch_entry_and_head():
    arrays, rows = inputs(), FAMILIES["causal_document"]().to_startend_row_indices()[0]
    expected = results_under(fm.RowIndices(jnp.asarray(rows), True), arrays)
    for heads in (1, 2, 4):
        each = jnp.broadcast_to(rows, (2, heads, *rows.shape[2:]))
        assert_same_bits(results_under(fm.RowIndices(each, True), arrays), expected)


def test_a_plan_stands_for_its_mask():
    arrays, indices = inputs(), packed()
    expected = results_under(indices, arrays)
    plan = jax.jit(lambda indices: fm.plan(indices, *arrays))(indices)  # a pytree
    found = jax.jit(lambda plan, *a: results(lambda *b: fm.attention(*b, plan=plan, return_lse=True), *a))(
        plan, *arrays
    )
    assert_same_bits(found, expected)
    assert fm.plan(FAMILIES["causal"](), *arrays).memory is None
    refused(ValueError, "mask and plan are both given", lambda: fm.attention(*arrays, indices, plan=plan))
    refused(TypeError, "expected what flashmask.jax.plan() returns", lambda: fm.attention(*arrays, plan=indices))
    refused(ValueError, "plan was made for batch = 2, and the call has 1", lambda: fm.attention(*inputs(1), plan=plan))
    refused(ValueError, "mask has 70 columns; expected 60", lambda: fm.plan(indices, *inputs(columns=60, rows=70)))


def test_memory_of_a_plan_goes_where_its_mask_goes(monkeypatch, mesh):
    """On a CPU nothing reads it: here it is made all the same, as for a GPU."""
    from flashmask.jax import _plan

    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(_plan, "_bytes_on_gpu", lambda operand, problem, deterministic: 640)
    (q, k, v), indices = inputs(), packed()
    expected = results_under(indices, (q, k, v))

    @jax.jit
    def computed(q, k, v, indices):
        plan = fm.plan(indices, q, k, v)
        assert plan.memory.shape == (640,)
        return results(jax.checkpoint(lambda *a: fm.attention(*a, plan=plan, return_lse=True)), q, k, v)

    assert_same_bits(computed(q, k, v, indices), expected)
    split = [jax.device_put(each, NamedSharding(mesh, Spec("data"))) for each in (q, k, v)]
    assert_same_bits(computed(*split, indices), expected)
    plan = fm.plan(indices, q, k, v)
    many = jnp.stack([q, 2 * q])
    found = jax.vmap(lambda q: fm.attention(q, k, v, plan=plan))(many)
    assert_same_bits(found, [fm.attention(each, k, v, indices) for each in many])
    with pytest.raises(NotImplementedError, match="jax.vmap over a mask; leave the plan out there"):
        jax.vmap(lambda values: fm.plan(fm.RowIndices(values, True), q, k, v))(indices.startend_row_indices[None])


def test_row_indices_may_change_between_runs_of_one_program():
    arrays = inputs()
    run = jax.jit(lambda lengths: fm.attention(*arrays, fm.from_cu_seqlens(jnp.cumsum(lengths), N)))
    for lengths in ([0, 31, 20, 19], [0, 10, 10, 50], [0, 31, 20, 19]):
        expected = fm.attention(*arrays, masks.causal_document(lengths[1:], N))
        assert_same_bits([run(jnp.array(lengths))], [expected])
    assert run._cache_size() == 1


def test_head_dims_are_padded_right_for_gpus():
    from flashmask.jax._foreign import _foreign, _padded
    from flashmask.jax._site import Options, Site

    arrays = inputs(dim=13, value_dim=15)
    forward = Site(Options(), False, ("q", "k", "v"))
    o, lse = _foreign(forward, *arrays)
    assert_close(_padded(forward, *arrays), (o, lse))
    backward = Site(Options(), True, ("q", "k", "v", "o", "lse", "grad_o", "grad_lse"))
    saved = (*arrays, o, lse, weights(o.shape, o.dtype), weights(lse.shape, lse.dtype))
    assert_close(_padded(backward, *saved), _foreign(backward, *saved))


def test_dropout_is_that_of_torch_for_the_seed_that_a_key_says():
    arrays, key = inputs(), jax.random.key(7)
    o = fm.attention(*arrays, masks.causal(N, N), dropout=0.25, key=key)
    again = jax.jit(lambda key: fm.attention(*arrays, masks.causal(N, N), dropout=0.25, key=key))
    assert_same_bits([again(key), again(jax.random.key_data(key))], [o, o])
    assert not np.array_equal(o, again(jax.random.key(8)))
    kept = dropped_by(key, 0.25)
    group = [jnp.repeat(array, 2, 2) for array in arrays[1:]]
    scores = jnp.einsum("bihd,bjhd->bhij", arrays[0], group[0]) * 0.25
    p = jax.nn.softmax(jnp.where(jnp.tril(jnp.ones((N, N), bool)), scores, -jnp.inf), -1)
    assert_close(o, jnp.einsum("bhij,bjhd->bihd", p * kept / 0.75, group[1]))


def dropped_by(key, dropout):
    """Which probabilities survive, by the library's own account of a seed."""
    import ctypes

    from flashmask._abi.library import call
    from flashmask._abi.problem import make_problem

    low, high = (int(word) for word in jax.random.key_data(key))
    q, k, v = inputs()
    problem = make_problem([q.shape, k.shape, v.shape], "float32", None, dropout)
    kept = np.empty((2, 4, N, N), np.uint8)
    address = kept.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
    call("dropout_expand", ctypes.byref(problem.struct()), low | high << 32, 0, address, kept.size)
    return kept


def test_gradients_under_dropout_are_those_of_what_was_kept():
    q, k, v = inputs()
    key = jax.random.key(3)

    def loss(v):
        return (fm.attention(q, k, v, masks.causal(N, N), dropout=0.5, key=key) * jnp.cos(q[..., :1])).sum()

    # The loss is linear in v, so its gradient gives the loss itself.
    np.testing.assert_allclose(jnp.vdot(jax.grad(loss)(v), v), loss(v), rtol=1e-4)


# ---- builders ----


@pytest.mark.parametrize(
    "options", [{}, {"window": 7}, {"causal": False}, {"causal": False, "window": 5}, {"prefix": 4}]
)
def test_builders_are_those_of_torch(options):
    lengths = [5, 0, 9, 4]
    ends = np.cumsum([0, *lengths])
    segments = np.array([0] * 5 + [1] * 9 + [0] * 4 + [-1] * 3)
    positions = np.concatenate([np.arange(5), np.arange(9), np.arange(4), np.arange(3)])
    for name, given in (("cu_seqlens", ends), ("segment_ids", segments), ("position_ids", positions)):
        extra = (21,) if name == "cu_seqlens" else ()
        build = getattr(fm, f"from_{name}")
        theirs = getattr(masks, f"from_{name}".replace("segment", "document"))
        found = jax.jit(lambda x, build=build, extra=extra: build(x, *extra, **options))(jnp.asarray(given))
        expected = theirs(torch.from_numpy(given), *extra, **options)
        assert found.causal == expected.causal
        np.testing.assert_array_equal(found.startend_row_indices, expected.startend_row_indices)
        if name != "cu_seqlens":
            np.testing.assert_array_equal(
                build(jnp.asarray(np.stack([given, given])), **options).startend_row_indices[1:],
                expected.startend_row_indices,
            )


def test_prefixes_may_be_arrays():
    ends, prefix = np.array([0, 5, 14, 18]), np.array([2, 9, 1])
    expected = masks.from_cu_seqlens(torch.from_numpy(ends), 20, prefix=torch.from_numpy(prefix)).startend_row_indices
    found = fm.from_cu_seqlens(jnp.asarray(ends), 20, prefix=jnp.asarray(prefix)).startend_row_indices
    np.testing.assert_array_equal(found, expected)
    segments = jnp.asarray([0] * 5 + [1] * 9 + [2] * 4 + [-1] * 2)
    found = fm.from_segment_ids(segments, prefix=jnp.asarray(prefix)).startend_row_indices
    np.testing.assert_array_equal(found, expected)


# ---- transforms ----


def test_vmap_maps_what_it_is_told_to():
    q, k, v = inputs()
    many_q, many_sinks = jnp.stack([q, 2 * q, -q]), jnp.stack([sinks_of() + i for i in range(3)])
    rows = jnp.stack([fm.from_cu_seqlens(jnp.array([0, cut, N]), N).startend_row_indices for cut in (10, 30, 50)])

    def call(q, k, rows, sinks):
        return fm.attention(q, k, v, fm.RowIndices(rows, True), sinks=sinks, return_lse=True)

    gradients = gradients_of(call, (0, 1, 3))
    for axes in ((0, None, None, None), (0, None, 0, None), (None, None, 0, 0), (0, None, None, 0)):
        arrays = [
            many if axis == 0 else many[0] for many, axis in zip((many_q, k[None], rows, many_sinks), axes, strict=True)
        ]
        found = jax.jit(jax.vmap(gradients, axes))(*arrays)
        one_by_one = [
            gradients(*(a[i] if axis == 0 else a for a, axis in zip(arrays, axes, strict=True))) for i in range(3)
        ]
        expected = jax.tree.map(lambda *each: jnp.stack(each), *one_by_one)
        assert_same_bits(found[:2], expected[:2])
        assert_close(found[2], expected[2])


def test_vmap_nests_and_keeps_masks_of_the_batch_apart():
    q, k, v = inputs()
    mask = masks.stack_batch([masks.causal(N, N), masks.sliding_window(N, N, 5)])
    both = jnp.stack([jnp.stack([q, 2 * q]), jnp.stack([-q, 3 * q])])
    found = jax.vmap(jax.vmap(lambda q: fm.attention(q, k, v, mask)))(both)
    for i in range(2):
        for j in range(2):
            assert_same_bits([found[i, j]], [fm.attention(both[i, j], k, v, mask)])


def test_checkpoint_and_scan_and_threads_give_the_same_bits():
    q, k, v = inputs(value_dim=16)
    mask = FAMILIES["shared_question"]()

    def layer(x, _):
        return x + fm.attention(x, k, v, mask), None

    def layers(x, wrap):
        for _ in range(3):
            x, _ = wrap(layer)(x, None)
        return x

    expected = gradients_of(lambda x: layers(x, lambda f: f), 0)(q)
    assert_same_bits([gradients_of(lambda x: layers(x, jax.checkpoint), 0)(q)], [expected])
    scanned = gradients_of(lambda x: lax.scan(layer, x, length=3)[0], 0)
    assert_same_bits([scanned(q)], [expected])
    found = [None] * 4

    def repeat(i):
        for _ in range(10):
            found[i] = scanned(q)

    threads = [threading.Thread(target=repeat, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert_same_bits(found, [expected] * 4)


def test_a_program_is_exported_and_loaded():
    from jax import export

    arrays = inputs()
    run = jax.jit(lambda *a: fm.attention(*a, masks.causal(N, N)))
    checks = [export.DisabledSafetyCheck.custom_call(f"flashmask_{name}") for name in ("forward", "backward")]
    program = export.export(run, disabled_checks=checks)(*arrays)
    assert_same_bits([export.deserialize(program.serialize()).call(*arrays)], [run(*arrays)])


# ---- several devices ----


@pytest.fixture(scope="module")
def mesh():
    return Mesh(np.array(jax.devices("cpu")[:4]).reshape(2, 2), ("data", "model"))


def moved(text):
    """How many collectives of each kind a compiled program has."""
    return {
        kind: len(re.findall(rf" {kind}(-start)?\(", text))
        for kind in ("all-gather", "all-to-all", "collective-permute")
    }


BY_BATCH_AND_HEADS = Spec("data", None, "model")


@pytest.mark.parametrize("spec", [BY_BATCH_AND_HEADS, Spec(("data", "model")), Spec(None, None, "model")])
@pytest.mark.parametrize("of_batch", [False, True])
def test_jit_over_sharded_arrays_gathers_nothing(mesh, spec, of_batch):
    arrays = inputs(batch=4, heads=8, kv_heads=4)
    rows = packed().startend_row_indices
    rows = jnp.tile(rows, (4, 1, 1, 1)) if of_batch else rows

    @jax.jit
    def compute(q, k, v, sinks, rows):
        call = lambda *a: fm.attention(*a[:3], fm.RowIndices(rows, True), sinks=a[3], return_lse=True)  # noqa: E731
        (o, lse), pull = jax.vjp(call, q, k, v, sinks)
        return o, lse, *pull((o * jnp.cos(o), lse * jnp.cos(lse)))

    expected = compute(*arrays, sinks_of(8), rows)
    split = [jax.device_put(array, NamedSharding(mesh, spec)) for array in arrays]
    split.append(jax.device_put(sinks_of(8), NamedSharding(mesh, Spec(*spec[2:]))))
    found = compute(*split, rows)
    assert set(moved(compute.lower(*split, rows).compile().as_text()).values()) == {0}
    assert found[2].sharding.is_equivalent_to(NamedSharding(mesh, spec), 4)
    assert_same_bits(found[1:5], expected[1:5])
    assert_close(found[5], expected[5], atol=1e-3)


def test_what_cannot_be_split_is_gathered_and_right(mesh):
    arrays = inputs(batch=4)
    compute = gradients_of(lambda *a: fm.attention(*a, masks.causal(N, N)))
    expected = compute(*arrays)
    # Tokens; dims; query heads in more parts than there are kv heads.
    for of_q, of_k in (
        (Spec(None, "data"),) * 2,
        (Spec("data", None, None, "model"),) * 2,
        (Spec(None, None, mesh.axis_names), Spec()),
    ):
        split = [
            jax.device_put(array, NamedSharding(mesh, spec))
            for array, spec in zip(arrays, (of_q, of_k, of_k), strict=True)
        ]
        assert_same_bits(compute(*split), expected)


@pytest.mark.parametrize("checked", [True, False])
def test_shard_map_gives_the_same_bits(mesh, checked):
    arrays, mask = inputs(batch=4, heads=8, kv_heads=4), FAMILIES["causal_document"]()

    def call(q, k, v, sinks):
        return fm.attention(q, k, v, mask, sinks=sinks)

    specs = (*[BY_BATCH_AND_HEADS] * 3, Spec("model"))
    split = jax.shard_map(call, mesh=mesh, in_specs=specs, out_specs=specs[0], check_vma=checked)

    found, expected = (gradients_of(each, range(4))(*arrays, sinks_of(8)) for each in (split, call))
    assert_same_bits(found[:3], expected[:3])
    assert_close(found[3], expected[3], atol=1e-3)


# ---- what is refused ----


def refused(error, message, call, *arguments):
    with pytest.raises(error, match=re.escape(message)):
        call(*arguments)


def test_masks_of_the_wrong_size_are_refused_while_tracing():
    arrays = inputs()
    sizes = "mask has 69 rows; expected 70, the tokens of q"
    for mask in (masks.causal(69, 70), np.ones((69, 70), bool), jnp.ones((69, 70), bool)):
        refused(ValueError, sizes, jax.make_jaxpr(lambda *a, m=mask: fm.attention(*a, m)), *arrays)
    values = packed().startend_row_indices
    for mask, said in (
        (fm.RowIndices(values, True, rows=69), sizes),
        (fm.RowIndices(values[:, :, 1:], True, rows=N), "mask has 69 columns; expected 70"),
        (fm.RowIndices(jnp.tile(values, (3, 1, 1, 1)), True), "mask has a batch of 3; expected 1 or 2"),
        (fm.RowIndices(jnp.tile(values, (1, 3, 1, 1)), True), "mask has 3 heads; expected 1, 2"),
    ):
        refused(ValueError, said, jax.make_jaxpr(fm.attention), *arrays, mask)


def test_wrong_arguments_are_refused_with_what_to_pass():
    q, k, v = inputs()
    for error, said, call in (
        (TypeError, "q is list [1]; expected an array of JAX or NumPy", lambda: fm.attention([1], k, v)),
        (TypeError, "q has dtype int32", lambda: fm.attention(q.astype(int), k, v)),
        (TypeError, "dtypes float32, bfloat16, float32", lambda: fm.attention(q, k.astype(jnp.bfloat16), v)),
        (
            ValueError,
            "q has 4 heads; expected a multiple of those of k, 3",
            lambda: fm.attention(q, *[x[:, :, :1].repeat(3, 2) for x in (k, v)]),
        ),
        (ValueError, "layout is 'shd'", lambda: fm.attention(q, k, v, layout="shd")),
        (
            TypeError,
            "mask is a flashmask.RowIndices, which holds a torch tensor",
            lambda: fm.attention(q, k, v, flashmask.RowIndices(torch.zeros(1, 1, N, 1, dtype=torch.int32), True)),
        ),
        (TypeError, "expected booleans, True = visible", lambda: fm.attention(q, k, v, jnp.zeros((N, N)))),
        (ValueError, "sinks has shape [3]; expected [4]", lambda: fm.attention(q, k, v, sinks=sinks_of(3))),
        (TypeError, "sinks has dtype bfloat16", lambda: fm.attention(q, k, v, sinks=sinks_of().astype(jnp.bfloat16))),
        (ValueError, "dropout is given and key is None", lambda: fm.attention(q, k, v, dropout=0.1)),
        (
            ValueError,
            "expected one key of jax.random",
            lambda: fm.attention(q, k, v, dropout=0.1, key=jax.random.split(jax.random.key(0), 3)),
        ),
        (ValueError, "dropout is 1.5", lambda: fm.attention(q, k, v, dropout=1.5)),
        (TypeError, "holds float32 values; expected int32", lambda: fm.RowIndices(jnp.zeros((1, 1, N, 1)), True)),
        (ValueError, "cu_seqlens is list [0, 3, 2]", lambda: fm.from_cu_seqlens(jnp.array([0, 3, 2]), 4)),
        (TypeError, "segment_ids holds float32 values", lambda: fm.from_segment_ids(jnp.zeros(4))),
        (
            ValueError,
            "prefix is given with causal=False",
            lambda: fm.from_position_ids(jnp.arange(4), causal=False, prefix=2),
        ),
        (
            ValueError,
            "prefix has shape [3]; expected one value per document",
            lambda: fm.from_cu_seqlens(jnp.array([0, 4]), 4, prefix=jnp.zeros(3, int)),
        ),
    ):
        refused(error, said, call)


def test_transforms_that_are_not_served_are_refused_in_a_sentence(mesh):
    q, k, v = inputs()

    def loss(q):
        return fm.attention(q, k, v).sum()

    twice = "a gradient of a gradient was asked for"
    refused(NotImplementedError, twice, jax.jit(jax.grad(lambda q: jax.grad(loss)(q).sum())), q)
    refused(NotImplementedError, twice, jax.hessian(loss), q)
    refused(TypeError, "can't apply forward-mode", lambda: jax.jvp(loss, (q,), (q,)))
    keys = jax.random.split(jax.random.key(0), 2)
    dropping = jax.vmap(lambda key: fm.attention(q, k, v, dropout=0.5, key=key))
    refused(NotImplementedError, "jax.vmap of a call with dropout", dropping, keys)
    split = jax.device_put(q, NamedSharding(mesh, Spec("data")))
    dropping = jax.jit(lambda q: fm.attention(q, k, v, dropout=0.5, key=keys[0]))
    refused(Exception, "dropout over arrays that jit splits", dropping, split)
    sizes = jax.export.symbolic_shape("n, 8, 2, 16")
    symbolic = jax.ShapeDtypeStruct(sizes, jnp.float32)
    refused(NotImplementedError, "whose sizes are symbolic", jax.eval_shape, fm.attention, symbolic, symbolic, symbolic)


def test_other_platforms_are_refused(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    refused(NotImplementedError, "this program is for tpu", fm.attention, *inputs())
    with jax.default_device(jax.devices("cpu")[0]):
        fm.attention(*inputs())


def test_a_gpu_is_refused_float32_when_it_compiles():
    """XLA's compiler calls this part of a handler without a GPU; a stub of the frame stands in for it."""


def test_flashmask_alone_loads_nothing_of_jax():
    code = "import sys, flashmask; sys.exit('jax' in sys.modules or 'flashmask.jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
