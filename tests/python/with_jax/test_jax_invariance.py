# SPDX-License-Identifier: Apache-2.0
"""invariant=True in flashmask.jax on a CPU: documents have the bits that they have alone, under every transform.

scripts/test jax runs this with the newest JAX that is supported.
"""

import functools
import re
from dataclasses import replace
from pathlib import Path

import pytest

jax = pytest.importorskip("jax", reason="scripts/test jax runs this where JAX is")
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax import export, lax  # noqa: E402
from jax.sharding import Mesh, NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as Spec  # noqa: E402
from jax_cases import bias_of, gradients_of, refused, sinks_of  # noqa: E402
from jax_document_bits import (  # noqa: E402
    LENGTHS,
    TOKENS,
    both_ways,
    documents_that_differ,
    every_third,
    given_to,
    of_every_third,
    under,
)

import flashmask.jax as fm  # noqa: E402
from flashmask import masks  # noqa: E402

PAGE = (Path(__file__).parents[3] / "docs/jax.md").read_text()
MASK = masks.causal_document(LENGTHS)
ENDS = np.cumsum([0, *LENGTHS])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_documents_have_the_bits_that_they_have_alone(dtype):
    given = given_to(dtype=dtype)
    # The plan of the grid is made first, so that one that is found by its mask alone is the wrong one.
    on_the_grid = jax.jit(both_ways(under(MASK, invariant=False)))(*given)
    assert documents_that_differ(on_the_grid, given)
    assert documents_that_differ(jax.jit(both_ways(under(MASK)))(*given), given) == []


def test_every_form_of_a_mask_gives_them():
    given = given_to()
    segments = jnp.repeat(jnp.arange(len(LENGTHS)), jnp.array(LENGTHS), total_repeat_length=TOKENS)
    plan = fm.plan(fm.from_segment_ids(segments), *given[:3], invariant=True)

    @jax.jit
    def traced(ends, visible, *given):
        given_masks = fm.from_cu_seqlens(ends, TOKENS), visible
        return [both_ways(under(mask))(*given) for mask in given_masks]

    for found in (*traced(ENDS, MASK.to_dense(), *given), jax.jit(both_ways(under(plan=plan)))(*given)):
        assert documents_that_differ(found, given) == []
    in_bits = jax.jit(both_ways(under(every_third(LENGTHS))))(*given)
    assert documents_that_differ(in_bits, given, alone=of_every_third) == []


def exported(run):
    checks = [export.DisabledSafetyCheck.custom_call(f"flashmask_{name}") for name in ("forward", "backward")]

    def call(*given):
        program = export.export(jax.jit(run), disabled_checks=checks)(*given)
        return export.deserialize(program.serialize()).call(*given)

    return call


def scanned(run):
    return lambda *given: [
        x[0] for x in lax.scan(lambda _, each: (None, run(*each)), None, [x[None] for x in given])[1]
    ]


@pytest.mark.parametrize("transform", [exported, scanned])
def test_transforms_keep_them(transform):
    given = given_to()
    assert documents_that_differ(transform(both_ways(under(MASK)))(*given), given) == []
    assert documents_that_differ(both_ways(jax.checkpoint(under(MASK)))(*given), given) == []


def test_vmap_keeps_them_beside_other_packs():
    given = given_to(batch=2)
    packs = [LENGTHS, LENGTHS[::-1]]
    rows = jnp.concatenate([fm.from_cu_seqlens(np.cumsum([0, *pack]), TOKENS).startend_row_indices for pack in packs])
    sinks = sinks_of()  # which all entries share, and none has a gradient of

    def of_pack(rows, *given):
        return both_ways(under(fm.RowIndices(rows[None], True), sinks=sinks))(*given)

    found = jax.jit(jax.vmap(of_pack, (0, *[None] * 4)))(rows, *given)
    alone = functools.cache(lambda n: jax.jit(both_ways(under(masks.causal(n, n), sinks=sinks))))
    for i, pack in enumerate(packs):
        assert documents_that_differ([x[i] for x in found], given, pack, alone) == []
    mapped = jax.vmap(both_ways(under(MASK)))(*(jnp.stack([3 * x, x]) for x in given))
    assert documents_that_differ([x[1] for x in mapped], given) == []


def test_sinks_that_all_mapped_entries_share_stay_one_per_head():
    """Kernels of some GPUs read no sinks of rows where tokens are moved."""
    from flashmask.jax._site import Options, Site
    from flashmask.jax._vmap import with_vmap

    shapes = []

    def attend(site, q, k, v, sinks):
        shapes.append(sinks.shape)
        return q, q[..., 0].swapaxes(1, 2)

    q, k, v, _ = given_to()
    forward = with_vmap(Site(Options(), False, ("q", "k", "v", "sinks")), attend)
    jax.vmap(lambda q: forward(q, k, v, sinks_of()))(jnp.stack([q, q]))
    assert set(shapes) == {(4,)}


def test_arrays_that_are_split_over_devices_keep_them():
    mesh = Mesh(np.array(jax.devices("cpu")[:4]).reshape(2, 2), ("data", "model"))
    given = given_to(batch=2)
    by_batch_and_heads = Spec("data", None, "model")
    split = [jax.device_put(each, NamedSharding(mesh, by_batch_and_heads)) for each in given]
    found = jax.jit(both_ways(under(MASK)))(*split)
    assert found[0].sharding.spec == by_batch_and_heads
    assert documents_that_differ(found, given) == []
    specs = {"in_specs": by_batch_and_heads, "out_specs": (by_batch_and_heads, Spec("data", "model"))}
    found = jax.jit(both_ways(jax.shard_map(under(MASK), mesh=mesh, **specs)))(*given)
    assert documents_that_differ(found, given) == []


def test_a_bias_and_slopes_without_a_gradient_keep_them():
    given, bias, slopes = given_to(), bias_of(1, 4, 1, TOKENS), jnp.linspace(0, 1, 4)
    for change in ({"alibi_slopes": slopes, "softcap": 2.0}, {"bias": bias}):
        found = jax.jit(both_ways(under(MASK, **change)))(*given)
        begin = sum(LENGTHS[:2])
        own = {"bias": bias[..., begin:]} if "bias" in change else change
        alone = both_ways(under(masks.causal(LENGTHS[2], LENGTHS[2]), **own))
        assert (
            documents_that_differ(
                [x[:, begin:] for x in found], [x[:, begin:] for x in given], LENGTHS[2:], lambda _, alone=alone: alone
            )
            == []
        )


def test_row_indices_say_how_many_documents_they_may_have():
    inside = []
    jax.jit(lambda ends: inside.append(fm.from_cu_seqlens(ends, TOKENS)))(ENDS)
    outside = fm.from_cu_seqlens(ENDS, TOKENS)  # one type for any number of documents
    assert (inside[0].most_documents, outside.most_documents) == (len(LENGTHS) + 1, None)
    assert jax.tree.map(lambda x: x, replace(outside, most_documents=9)).most_documents == 9
    refused(ValueError, "most_documents is 0; expected at least 1", lambda: replace(outside, most_documents=0))


def test_plans_and_calls_say_the_same():
    q, k, v, _ = given_to()
    plan = fm.plan(MASK, q, k, v, invariant=True)
    with pytest.raises(ValueError, match="plan was made with invariant=True, the call says False; say the same"):
        fm.attention(q, k, v, plan=plan)
    with pytest.raises(TypeError, match="invariant"):
        fm.attention(q, k, v, MASK, invariant=1)


def test_a_plan_on_a_gpu_needs_to_know_how_many_documents():
    from flashmask._abi.problem import make_problem
    from flashmask.jax._masks import mask_operand
    from flashmask.jax._plan import _bytes_on_gpu
    from flashmask.jax._site import Options

    problem = make_problem([x.shape for x in given_to()[:3]], "bfloat16", None, 0.0)
    rows = fm.from_cu_seqlens(ENDS, TOKENS)
    for mask, said in ((rows, "most_documents is 0"), (jnp.asarray(MASK.to_dense()), "found in row indices alone")):
        refused(
            (ValueError, NotImplementedError),
            said,
            lambda m=mask: _bytes_on_gpu(mask_operand(m, problem), problem, Options(invariant=True)),
        )


@pytest.mark.parametrize("name", ["sinks", "bias"])
def test_a_gradient_that_no_document_has_alone_is_refused(name):
    q, k, v, _ = given_to()
    array = sinks_of() if name == "sinks" else jnp.asarray(bias_of(1, 4, 1, TOKENS))

    def call(q, array):
        return fm.attention(q, k, v, MASK, invariant=True, **{name: array})

    said = f"a gradient of {name} was asked for beside invariant=True, and it is a sum over the whole call"
    with pytest.raises(NotImplementedError, match=re.escape(said)) as error:
        gradients_of(call, (0, 1))(q, array)
    assert name != "sinks" or f'"{error.value}"' in PAGE
    gradients_of(lambda q, array: call(q, lax.stop_gradient(array)), (0, 1))(q, array)
