# SPDX-License-Identifier: Apache-2.0
"""flashmask.jax on a CPU under every transform of JAX, over several devices, and what it refuses.

scripts/test jax runs this with the oldest and the newest JAX that are supported.
"""

import re
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="scripts/test jax runs this where JAX is")
import jax.numpy as jnp  # noqa: E402
from jax import export, lax  # noqa: E402
from jax.sharding import Mesh, NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as Spec  # noqa: E402
from jax_cases import (  # noqa: E402
    N,
    assert_close,
    assert_same_bits,
    bias_of,
    gradients_of,
    inputs,
    packed,
    refused,
    results,
    results_under,
    sinks_of,
)

import flashmask  # noqa: E402
import flashmask.jax as fm  # noqa: E402
from flashmask import masks  # noqa: E402

PAGE = (Path(__file__).parents[3] / "docs/jax.md").read_text()
DOCUMENTS = masks.causal_document([31, 0, 20], N)


# ---- masks and plans ----


def test_a_plan_stands_for_its_mask():
    arrays, indices = inputs(), packed()
    expected = results_under(indices, arrays)
    plan = jax.jit(lambda indices: fm.plan(indices, *arrays))(indices)  # a pytree
    found = jax.jit(lambda plan, *a: results(lambda *b: fm.attention(*b, plan=plan, return_lse=True), *a))(
        plan, *arrays
    )
    assert_same_bits(found, expected)
    assert fm.plan(masks.causal(N, N), *arrays).memory is None
    refused(ValueError, "mask and plan are both given", lambda: fm.attention(*arrays, indices, plan=plan))
    refused(TypeError, "expected what flashmask.jax.plan() returns", lambda: fm.attention(*arrays, plan=indices))
    refused(ValueError, "plan was made for batch = 2, and the call has 1", lambda: fm.attention(*inputs(1), plan=plan))
    refused(ValueError, "mask has 70 columns; expected 60", lambda: fm.plan(indices, *inputs(columns=60, rows=70)))


def test_memory_of_a_plan_goes_where_its_mask_goes(monkeypatch, mesh):
    """On a CPU nothing reads it: here it is made all the same, as for a GPU."""
    from flashmask.jax import _plan

    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(_plan, "_bytes_on_gpu", lambda *_: 640)
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
    with pytest.raises(NotImplementedError, match="over a mask; leave the plan out there"):
        jax.vmap(lambda values: fm.plan(fm.RowIndices(values, True), q, k, v))(indices.startend_row_indices[None])


def test_row_indices_may_change_between_runs_of_one_program():
    arrays = inputs()
    run = jax.jit(lambda lengths: fm.attention(*arrays, fm.from_cu_seqlens(jnp.cumsum(lengths), N)))
    for lengths in ([0, 31, 20, 19], [0, 10, 10, 50], [0, 31, 20, 19]):
        expected = fm.attention(*arrays, masks.causal_document(lengths[1:], N))
        assert_same_bits([run(jnp.array(lengths))], [expected])
    assert run._cache_size() == 1


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


def test_vmap_maps_what_is_added_to_scores():
    q, k, v = inputs()
    many_q = jnp.stack([q, 2 * q, -q])
    of_all, of_each = (jnp.asarray(bias_of(batch)) for batch in (1, 2))

    def with_bias(q, bias):
        return fm.attention(q, k, v, packed(), bias=bias, return_lse=True)

    def with_slopes(q, slopes, keys=0):
        positions = {"query_positions": jnp.arange(N)[None], "key_positions": jnp.arange(N)[None] + keys}
        return fm.attention(q, k, v, packed(), alibi_slopes=slopes, **positions)

    slopes = jnp.linspace(0, 1, 12).reshape(3, 4)
    for call, arguments, axes, differentiated in (
        (with_bias, (many_q, of_all), (0, None), (0, 1)),
        (with_bias, (many_q, of_each), (0, None), (0, 1)),
        (with_bias, (q, jnp.stack([of_all, 2 * of_all, -of_all])), (None, 0), (0, 1)),
        (with_slopes, (many_q, slopes), (0, 0), 0),
        (with_slopes, (many_q, slopes[0]), (0, None), 0),
        (with_slopes, (many_q, slopes[:2], jnp.arange(3)), (0, None, 0), 0),
    ):
        gradients = gradients_of(call, differentiated)
        found = jax.jit(jax.vmap(gradients, axes))(*arguments)
        one_by_one = [
            gradients(*(a[i] if axis == 0 else a for a, axis in zip(arguments, axes, strict=True))) for i in range(3)
        ]
        expected = jax.tree.map(lambda *each: jnp.stack(each), *one_by_one)
        assert_close(found, expected)


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
    mask = masks.shared_question([(10, [20, 15]), (5, [8, 12])], N)

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
    arrays = inputs(batch=4, heads=8, kv_heads=4, dim=13 if of_batch else 16)
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


@pytest.mark.parametrize("shape", [(1, 1), (4, 1), (1, 8), (4, 8)])
def test_what_is_added_to_scores_is_split_with_them(mesh, shape):
    arrays, bias = inputs(batch=4, heads=8, kv_heads=4), jnp.asarray(bias_of(*shape))
    slopes = jnp.linspace(0, 1, 8)
    of_bias = gradients_of(lambda q, k, v, bias: fm.attention(q, k, v, packed(), bias=bias, softcap=2.0), range(4))
    of_slopes = gradients_of(lambda q, k, v, slopes: fm.attention(q, k, v, packed(), alibi_slopes=slopes))
    split = [jax.device_put(array, NamedSharding(mesh, BY_BATCH_AND_HEADS)) for array in arrays]
    for compute, given in ((of_bias, bias), (of_slopes, slopes)):
        expected = compute(*arrays, given)
        found = compute(*split, given)
        assert set(moved(compute.lower(*split, given).compile().as_text()).values()) == {0}
        assert_same_bits(found[:3], expected[:3])
        assert_close(found[3:], expected[3:], atol=1e-3)


def test_what_cannot_be_split_is_gathered_and_right(mesh):
    arrays = inputs(batch=4)
    compute = gradients_of(lambda *a: fm.attention(*a, masks.causal(N, N)))
    expected = compute(*arrays)
    # Tokens; dims; query heads in more parts than there are kv heads; heads of q and the batch of k and v by one axis.
    for of_q, of_k in (
        (Spec(None, "data"),) * 2,
        (Spec("data", None, None, "model"),) * 2,
        (Spec(None, None, mesh.axis_names), Spec()),
        (Spec(None, None, "data"), Spec("data")),
    ):
        split = [
            jax.device_put(array, NamedSharding(mesh, spec))
            for array, spec in zip(arrays, (of_q, of_k, of_k), strict=True)
        ]
        assert_same_bits(compute(*split), expected)


@pytest.mark.parametrize("checked", [True, False])
def test_shard_map_gives_the_same_bits(mesh, checked):
    arrays, mask = inputs(batch=4, heads=8, kv_heads=4), DOCUMENTS

    def call(q, k, v, sinks):
        return fm.attention(q, k, v, mask, sinks=sinks)

    specs = (*[BY_BATCH_AND_HEADS] * 3, Spec("model"))
    split = jax.shard_map(call, mesh=mesh, in_specs=specs, out_specs=specs[0], check_vma=checked)

    found, expected = (gradients_of(each, range(4))(*arrays, sinks_of(8)) for each in (split, call))
    assert_same_bits(found[:3], expected[:3])
    assert_close(found[3], expected[3], atol=1e-3)


# ---- what is refused ----


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

    def refused(error, message, call, *arguments):  # in words of the page
        with pytest.raises(error, match=re.escape(message)) as said:
            call(*arguments)
        assert error is not NotImplementedError or f'"{said.value}"' in PAGE
        assert message in PAGE

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
    sizes = export.symbolic_shape("n, 8, 2, 16")
    symbolic = jax.ShapeDtypeStruct(sizes, jnp.float32)
    refused(NotImplementedError, "whose sizes are symbolic", jax.eval_shape, fm.attention, symbolic, symbolic, symbolic)


def test_other_platforms_are_refused(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    refused(NotImplementedError, "this program is for tpu", fm.attention, *inputs())
    with jax.default_device(jax.devices("cpu")[0]):
        fm.attention(*inputs())


def test_the_function_for_arrays_with_values_names_the_one_for_traced_arrays():
    q = inputs()[0]
    assert_same_bits([flashmask.attention(q, q, q, masks.causal(N, N))], [fm.attention(q, q, q, masks.causal(N, N))])
    for transform in (jax.jit, jax.vmap, lambda f: jax.grad(lambda q: f(q).sum())):
        with pytest.raises(TypeError, match=r"call flashmask\.jax\.attention there"):
            transform(lambda q: flashmask.attention(q, q, q, masks.causal(N, N)))(q)


def test_flashmask_alone_loads_nothing_of_jax():
    code = "import sys, flashmask; sys.exit('jax' in sys.modules or 'flashmask.jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
