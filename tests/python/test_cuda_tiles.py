# SPDX-License-Identifier: Apache-2.0
"""Plans of slices with the tiles of the whole give the bits of the whole."""

import pytest

torch = pytest.importorskip("torch")

import flashmask  # noqa: E402
from flashmask import masks  # noqa: E402
from flashmask._partition import partition  # noqa: E402

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def rows_of(spans):
    return torch.cat([torch.arange(begin, end) for begin, end in spans]).cuda()


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("length", [65, 300, 400, 500, 3000])
def test_slices_give_the_bits_of_the_whole(length, head_dim):
    tokens = 6144
    lengths = [length] * (tokens // length) + [tokens % length] * (tokens % length > 0)
    mask = masks.causal_document(lengths)
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, tokens, heads, head_dim, device="cuda").bfloat16() for heads in (4, 2, 2))
    whole = flashmask.plan(mask, q, k, v)
    o, lse = flashmask.attention(q, k, v, plan=whole, return_lse=True)
    for tiles in ("large", "small"):  # the backward of 64 dims has large ones only
        asked = flashmask.plan(mask, q, k, v, tiles=(tiles, "automatic"))
        same = torch.equal(flashmask.attention(q, k, v, plan=asked), o)
        assert same or tiles != whole.tiles[0]
    # Of unequal parts, the shorter rows to one rank.
    made = partition(mask, 3, "contiguous", aligned=True, tile=384)
    needs = made.needs(mask)
    for rank in range(3):
        rows, columns = made.spans(rank), made.local_columns(needs, rank)
        own, seen = rows_of(rows), rows_of(columns)
        local = [q[:, own], k[:, seen], v[:, seen]]
        plan = flashmask.plan(mask.slice(rows, columns), *local, tiles=whole.tiles)
        local_o, local_lse = flashmask.attention(*local, plan=plan, return_lse=True)
        assert torch.equal(local_o, o[:, own])
        assert torch.equal(local_lse, lse[:, :, own])
