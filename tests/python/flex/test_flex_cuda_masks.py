# SPDX-License-Identifier: Apache-2.0
"""masks.from_mask_mod() and from_block_mask() on a GPU: the masks that the same predicates make on the CPU."""

import warnings
from types import CellType, FunctionType

import pytest
import torch
from cuda_device import needs_gpu
from mask_mods import CASES, B, H
from random_predicates import Predicate
from torch.nn.attention.flex_attention import create_block_mask

import flashmask
from flashmask import masks
from flashmask._flex.columns import MOST, TooManyRanges, masked_rows, visible_columns
from flashmask._flex.formula import And, Compare, Fact, Or, formula
from flashmask._flex.symbols import Space, Untraceable, trace_mask
from flashmask.masks._mask_mod import made_from_mask_mod

pytestmark = needs_gpu

N = 300
PREDICATES = {
    "ranges of rows": (lambda ids, h: lambda b, _, q, kv: (ids[b, q] == ids[b, kv]) & (q >= kv), True),
    "ranges per head": (lambda ids, h: lambda b, head, q, kv: (q - kv).abs() < h[head], True),
    "ranges of columns": (lambda ids, h: lambda b, _, q, kv: ((q - kv).abs() < 9) | ((q - kv).abs() == 40), False),
    "pairs": (lambda ids, h: lambda b, _, q, kv: (q * kv) % 3 == 0, False),
    "pairs in two ranges": (lambda ids, h: lambda b, _, q, kv: (q - kv) * 0.5 >= 3, True),
    "pairs without symbols": (lambda ids, h: lambda b, _, q, kv: torch.stack([q, kv]).sum() > 250, True),
}


def of(name, device):
    make, _ = PREDICATES[name]
    return make((torch.arange(N) // torch.tensor([[70], [45]])).to(device), torch.tensor([3, 50, 2]).to(device))


def as_mask(made):
    return made.to_mask() if isinstance(made, flashmask.RowIndices) else made


def on_device(function):
    """The same function with its tensors on the device."""

    def moved(value):
        return value.cuda() if isinstance(value, torch.Tensor) else value

    names = {name: moved(value) for name, value in function.__globals__.items()}
    cells = tuple(CellType(moved(cell.cell_contents)) for cell in function.__closure__ or ())
    return FunctionType(function.__code__, names, function.__name__, function.__defaults__, cells or None)


@pytest.mark.parametrize("name", PREDICATES)
def test_a_predicate_makes_the_same_mask_on_the_device(name):
    made = masks.from_mask_mod(of(name, "cuda"), 2, 3, N, N, device="cuda")
    assert isinstance(made, flashmask.RowIndices) == PREDICATES[name][1]
    if isinstance(made, flashmask.RowIndices):
        assert made.startend_row_indices.device == torch.device("cuda", torch.cuda.current_device())
    assert as_mask(made) == masks.from_mask_mod(of(name, "cpu"), 2, 3, N, N)


@pytest.mark.parametrize("name", PREDICATES)
def test_a_block_mask_makes_the_same_mask_on_the_device(name):
    made = masks.from_block_mask(create_block_mask(of(name, "cuda"), 2, 3, N, N, device="cuda"))
    assert as_mask(made) == masks.from_block_mask(create_block_mask(of(name, "cpu"), 2, 3, N, N, device="cpu"))


@pytest.mark.parametrize("name", CASES)
def test_a_predicate_that_people_write_takes_the_same_way_on_the_device(name):
    mask_mod, rows, columns, way = CASES[name]()
    made = made_from_mask_mod(on_device(mask_mod), (B, H, rows, columns), "cuda")
    assert made.way == way
    assert as_mask(made.mask) == masks.from_mask_mod(mask_mod, B, H, rows, columns)


def test_long_sequences_make_the_same_masks_on_the_device():
    """Longer than a block of threads, and no power of two."""
    tokens = 70_001
    generator = torch.Generator().manual_seed(0)
    ids = (torch.rand(2, tokens, generator=generator) < 0.002).cumsum(1)
    image = torch.where(ids % 2 == 1, ids, -1)
    restarting, sorted_floats = torch.arange(tokens) % 600, torch.randn(tokens, generator=generator).sort().values
    for mask_mod in (
        lambda b, h, q, kv: (ids[b, q] == ids[b, kv]) & (q >= kv),
        lambda b, h, q, kv: (q >= kv) | ((image[b, q] == image[b, kv]) & (image[b, q] >= 0)),
        lambda b, h, q, kv: (ids[b, q] == ids[b, kv]) & (restarting[q] >= restarting[kv]) & (q >= kv),
        lambda b, h, q, kv: (sorted_floats[q] >= sorted_floats[kv]) & (ids[b, q] != ids[b, kv] + 3),
    ):
        made = made_from_mask_mod(on_device(mask_mod), (2, 1, tokens, tokens), "cuda")
        assert made.way in ("columns", "rows")
        assert as_mask(made.mask) == masks.from_mask_mod(mask_mod, 2, 1, tokens, tokens)


def moved(part, device_of):
    if isinstance(part, (And, Or)):
        return type(part)([moved(each, device_of) for each in part.parts])
    if isinstance(part, Fact):
        return Fact(device_of(part.value))
    return Compare(part.op, device_of(part.rows), device_of(part.columns))


def answers(part, space):
    """What is found of a formula, or why nothing is."""
    found = []
    for find in (masked_rows, visible_columns):
        try:
            ranges = find(part, space)
            empty = ranges.values.new_full((*ranges.values.shape[:3], 2 * MOST), ranges.rows)
            empty[..., : ranges.values.shape[3]] = ranges.values  # what is known to fit has more slots
            found.append(empty.cpu())
        except (TooManyRanges, Untraceable) as error:
            found.append(type(error))
    return found


def test_random_formulas_have_the_same_ranges_on_the_device():
    compared = 0
    for seed in range(400):
        drawn = Predicate(seed)
        here, there = Space(drawn.sizes, "cpu"), Space(drawn.sizes, "cuda")

        def device_of(tensor, here=here, there=there):
            own = [index for index, other in zip(there.index, here.index, strict=True) if other is tensor]
            return own[0] if own else tensor.cuda()

        try:
            part = formula(trace_mask(drawn.mask_mod, here))
        except Untraceable:
            continue
        for a, b in zip(answers(moved(part, device_of), there), answers(part, here), strict=True):
            if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
                assert torch.equal(a, b), f"seed {seed}"
                compared += 1
            else:
                assert a is Untraceable or a == b, f"seed {seed}"  # formulas may be too long for a GPU
    assert compared > 400


def waits(mask_mod):
    """How often making a mask waits for the device."""
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            masks.from_mask_mod(mask_mod, None, None, N, N, device="cuda")
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return sum("synchronizing" in str(each.message) for each in said)


def test_a_mask_of_two_ranges_a_column_waits_for_the_device_once_at_most():
    ids, flags = torch.arange(N, device="cuda") // 70, torch.arange(N, device="cuda") > 9
    assert waits(lambda b, h, q, kv: q >= kv) == 0
    assert waits(lambda b, h, q, kv: (q >= kv) & (q - kv < 17) & flags[kv]) == 0
    assert waits(lambda b, h, q, kv: (ids[q] == ids[kv]) & (q >= kv)) == 1
    # More ranges a column are counted first, then measured.
    assert waits(lambda b, h, q, kv: (ids[q] == ids[kv]) & flags[q] | (q - kv == 3)) <= 3


def test_not_a_number_is_noticed_on_the_device():
    values = torch.tensor([0.0, torch.nan, 2.0, 1.0])

    def mask_mod(b, h, q, kv):
        return values[q] <= values[kv]

    made = made_from_mask_mod(on_device(mask_mod), (1, 1, 4, 4), "cuda")
    assert made.way.startswith("evaluated")
    assert as_mask(made.mask) == masks.from_mask_mod(mask_mod, None, None, 4, 4)


def test_captured_tensors_on_the_cpu_are_refused():
    with pytest.raises(ValueError, match="a captured tensor is on cpu, the mask on cuda:0; move it there"):
        masks.from_mask_mod(of("ranges of rows", "cpu"), 2, 3, N, N, device="cuda")
