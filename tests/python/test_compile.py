# SPDX-License-Identifier: Apache-2.0
"""torch.compile(fullgraph=True): the results, and that neither lengths nor masks recompile per batch."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from attention_oracle import random_inputs, softmax_attention
from functorch.compile import make_boxed_func
from mask_families import FAMILIES, N, visible
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.testing import CompileCounterWithBackend

import flashmask
from flashmask import masks
from flashmask._linear_attention import LinearState
from flashmask._torch.schemas import SCHEMA, number_of

LENGTHS = (40, 56, 72, 90, 133)


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def inputs(tokens, dtype=torch.float32):
    return [t.to(dtype).requires_grad_() for t in random_inputs(1, tokens, tokens, 4, 2, 16, 16, seed=tokens)[:3]]


def split(tokens):
    return [tokens // 3, tokens - tokens // 3]


def with_gradients(compute, tensors):
    o = compute(*tensors)
    return [o.detach(), *torch.autograd.grad(o, tensors, torch.ones_like(o))]


def check_batches(function, argument):
    """Runs a function compiled and not, forward and backward, over lengths and masks; returns how often it compiled."""
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(function, fullgraph=True, backend=counter)
    for tokens in LENGTHS:
        tensors = inputs(tokens)
        given = argument(tokens, tensors)
        expected = with_gradients(lambda *t, given=given: function(*t, given), tensors)
        found = with_gradients(lambda *t, given=given: compiled(*t, given), tensors)
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b)
    return counter.frame_count


def test_graphs_tell_one_list_of_arguments_from_another():
    """Inductor keeps graphs on disk by their text, in which arguments at their defaults are missing."""
    traced = []

    def keep(graph, inputs):
        traced.extend(node for node in graph.graph.nodes if "flashmask" in str(node.target))
        return make_boxed_func(graph.forward)

    compiled = torch.compile(flashmask.attention, fullgraph=True, backend=aot_autograd(fw_compiler=keep))
    with_gradients(lambda *t: compiled(*t, masks.causal(40, 40)), inputs(40))
    assert [str(node.target) for node in traced] == ["flashmask.forward.default", "flashmask.backward.default"]
    assert all(node.args[-1] == SCHEMA for node in traced)
    assert len({SCHEMA, number_of("float softcap=0.0"), number_of("str change=''"), 0}) == 4


def test_masks_of_each_batch_do_not_recompile():
    def attend(q, k, v, mask):
        return flashmask.attention(q, k, v, mask).sin()

    # The first shapes are compiled as they are, the next as dynamic.
    assert check_batches(attend, lambda tokens, _: masks.causal_document(split(tokens))) <= 2


def test_masks_of_changing_forms_do_not_recompile():
    def attend(q, k, v, mask):
        return flashmask.attention(q, k, v, mask)

    def mask(tokens, _):
        if tokens % 16:
            return masks.causal(tokens, tokens)
        return masks.from_dense(torch.rand(4, tokens, tokens, generator=torch.Generator().manual_seed(tokens)) < 0.5)

    assert check_batches(attend, mask) <= 2


def test_plans_of_each_batch_do_not_recompile():
    def attend(q, k, v, plan):
        return flashmask.attention(q, k, v, plan=plan)

    assert check_batches(attend, lambda tokens, t: flashmask.plan(masks.document(split(tokens)), *t)) <= 2


@pytest.mark.parametrize("window", [None, 9])
def test_row_indices_are_built_inside(window):
    def attend(q, k, v, cu_seqlens):
        return flashmask.attention(q, k, v, masks.from_cu_seqlens(cu_seqlens, q.shape[1], window=window))

    def cu_seqlens(tokens, _):
        return torch.tensor([0, tokens // 3, tokens // 2, tokens])

    assert check_batches(attend, cu_seqlens) <= 2


def test_row_indices_passed_in_do_not_recompile():
    def attend(q, k, v, rows):
        return flashmask.attention(q, k, v, rows)

    def rows(tokens, _):
        return masks.from_position_ids(torch.cat([torch.arange(n) for n in split(tokens)]))

    assert check_batches(attend, rows) <= 2


def test_the_papers_function_does_not_recompile():
    def attend(q, k, v, rows):
        return flashmask.flashmask_attention(q, k, v, rows, causal=True)

    def rows(tokens, _):
        return torch.full((1, 1, tokens, 1), tokens // 2 + 1, dtype=torch.int32)

    assert check_batches(attend, rows) <= 2


def test_windows_do_not_recompile():
    def attend(q, k, v, _):
        return flashmask.flashmask_attention(q, k, v, window_size=(7, 3))

    assert check_batches(attend, lambda *_: None) <= 2


def test_varlen_does_not_recompile():
    def attend(q, k, v, cu_seqlens):
        return flashmask.varlen_attention(q[0], k[0], v[0], cu_seqlens, cu_seqlens, causal=True, window_size=(20, 0))

    assert check_batches(attend, lambda tokens, _: torch.tensor([0, *split(tokens)]).cumsum(0)) <= 2


@pytest.mark.full  # test_compile_values.py asks for its bits
def test_inductor_runs_it_with_heads_first():
    def attend(q, k, v, mask):
        o, lse = flashmask.attention(q * 2, k, v, mask, layout="bhsd", return_lse=True)
        return o.relu().transpose(1, 2) + lse.transpose(1, 2)[..., None] * 0.1

    compiled = torch.compile(attend, fullgraph=True)
    mask = FAMILIES["document"]()
    tensors = [t.detach().transpose(1, 2).requires_grad_() for t in inputs(N)]
    expected = with_gradients(lambda *t: attend(*t, mask), tensors)
    found = with_gradients(lambda *t: compiled(*t, mask), tensors)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)


def test_autocast_is_traced():
    def attend(q, k, v, mask):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return flashmask.attention(q, k, v, mask)

    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
    mask = masks.causal(N, N)
    tensors = inputs(N)
    o = compiled(*tensors, mask)
    assert o.dtype == torch.bfloat16
    assert torch.equal(o, attend(*tensors, mask))


def test_dropout_is_drawn_anew_and_repeats_with_the_seed():
    def attend(q, k, v):
        return flashmask.flashmask_attention(q, k, v, causal=True, dropout=0.5)

    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
    tensors = inputs(N)
    torch.manual_seed(3)
    first, second = compiled(*tensors), compiled(*tensors)
    torch.manual_seed(3)
    assert torch.equal(compiled(*tensors), first)
    assert not torch.equal(first, second)


def test_checkpointing_inside_a_compiled_function():
    from torch.utils.checkpoint import checkpoint

    mask = FAMILIES["graph"]()

    def attend(q, k, v):
        return checkpoint(lambda *t: flashmask.attention(*t, mask).sin(), q, k, v, use_reentrant=False)

    tensors = inputs(N)
    expected = with_gradients(lambda *t: flashmask.attention(*t, mask).sin(), tensors)
    found = with_gradients(torch.compile(attend, fullgraph=True, backend="aot_eager"), tensors)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)


def test_a_wrong_mask_is_refused_when_it_runs():
    compiled = torch.compile(flashmask.attention, fullgraph=True, backend="aot_eager")
    with pytest.raises(ValueError, match="mask has 5 rows; expected 40, the tokens of q"):
        compiled(*inputs(40), masks.causal(5, 40))


def test_booleans_are_refused_inside():
    compiled = torch.compile(flashmask.attention, fullgraph=True, backend="aot_eager")
    with pytest.raises(torch._dynamo.exc.Unsupported):  # older versions do not show our message
        compiled(*inputs(40), torch.ones(40, 40, dtype=torch.bool))


class Attend(torch.nn.Module):
    def forward(self, q, k, v, mask):
        return flashmask.attention(q, k, v, mask)


def test_an_exported_program_takes_other_masks_and_lengths():
    tokens = torch.export.Dim("tokens", min=8, max=4096)
    shapes = ({1: tokens},) * 3
    q, k, v = (t.detach() for t in inputs(64))
    program = torch.export.export(
        Attend(), (q, k, v, masks.causal(64, 64)), dynamic_shapes=(*shapes, [{0: torch.export.Dim("bytes")}])
    )
    mask = masks.document([60, 30])
    q, k, v = (t.detach() for t in inputs(90))
    found = program.module()(q, k, v, mask)
    torch.testing.assert_close(found, softmax_attention(q, k, v, visible(mask))[0])


class AttendPacked(torch.nn.Module):
    """Makes its masks of the length that q has."""

    def forward(self, q, ends, parents):
        tokens = q.shape[1]
        documents = masks.from_cu_seqlens(ends, tokens, window=5)
        prefixes = masks.from_cu_seqlens(ends, tokens, prefix=3)
        tree = masks.from_tree(parents, ends.diff(), tokens)
        drafts = masks.dflash(ends[1:], 4, tokens)
        drafted = q[:, : 4 * parents.shape[0]]
        keys = torch.cat([q, drafted], 1)
        blocks = masks.packed_block_diffusion(ends, 4, tokens, interleaved=True)
        twice = q.repeat(1, 2, 1, 1)
        o = [flashmask.attention(q, q, q, mask) for mask in (documents, prefixes, tree)]
        o.append(flashmask.varlen_attention(q[0], q[0], q[0], ends, ends, causal=True)[None])
        return [*o, flashmask.attention(drafted, keys, keys, drafts), flashmask.attention(twice, twice, twice, blocks)]


def test_an_exported_program_makes_masks_of_any_length():
    q, ends, parents = torch.randn(1, 20, 2, 8), torch.tensor([0, 5, 20]), torch.tensor([-1, 0])
    program = torch.export.export(
        AttendPacked(),
        (q, ends, parents),
        dynamic_shapes={"q": {1: torch.export.Dim("tokens", min=8)}, "ends": None, "parents": None},
    )
    for tokens in (20, 33):
        given = torch.randn(1, tokens, 2, 8), torch.tensor([0, 11, tokens]), parents
        for found, expected in zip(program.module()(*given), AttendPacked()(*given), strict=True):
            torch.testing.assert_close(found, expected)


EXPORTED = """
import sys, torch, flashmask
from flashmask import masks
program = torch.export.load(sys.argv[1]).module()
q = torch.linspace(-1, 1, 90 * 2 * 16).reshape(1, 90, 2, 16)
for mask in (masks.causal(90, 90), masks.document([60, 30]), masks.from_dense(torch.ones(90, 90).tril(-3) > 0)):
    torch.testing.assert_close(program(q, q, q, mask), flashmask.attention(q, q, q, mask))
for name in ("mask", "rows", "plan"):
    print(name, torch.load(sys.argv[1] + name, weights_only=True) is not None)
"""


def test_another_process_loads_programs_and_masks_without_a_word(tmp_path):
    """As anything that comes from elsewhere is loaded: with weights_only, which torch.export tries first."""
    q = torch.randn(1, 64, 2, 16)
    sizes = {1: torch.export.Dim.AUTO}
    mask = masks.causal(64, 64)
    program = torch.export.export(
        Attend(), (q, q, q, mask), dynamic_shapes=(sizes, sizes, sizes, [{0: torch.export.Dim.AUTO}])
    )
    path = tmp_path / "program.pt2"
    torch.export.save(program, path)
    kept = {
        "mask": mask,
        "rows": masks.from_cu_seqlens(torch.tensor([0, 9]), 12),
        "plan": flashmask.plan(mask, q, q, q, form="bits"),
    }
    for name, each in kept.items():
        torch.save(each, f"{path}{name}")
    done = subprocess.run([sys.executable, "-c", EXPORTED, path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout == "mask True\nrows True\nplan True\n"


def test_loaded_masks_are_those_that_were_saved(tmp_path):
    mask = FAMILIES["graph"]()
    rows = masks.from_cu_seqlens(torch.tensor([0, 9]), 12, causal=False)
    nodes = flashmask.nodes(masks.shared_question([(5, [3, 2])], 12))
    nodes.kept("made of the nodes", object)  # and so not saved
    states = torch.ones(3, 2), None, torch.zeros(3)
    torch.save({"mask": mask, "rows": rows, "nodes": nodes, "state": LinearState(*states)}, tmp_path / "batch.pt")
    loaded = torch.load(tmp_path / "batch.pt", weights_only=True)
    assert loaded["mask"] == mask
    assert loaded["rows"].to_mask() == rows.to_mask()
    for name in ("tokens", "begins", "ends", "parents", "levels", "predecessors"):
        np.testing.assert_array_equal(getattr(loaded["nodes"], name), getattr(nodes, name))
    assert isinstance(loaded["state"], LinearState)
    torch.testing.assert_close(tuple(loaded["state"]), states)
