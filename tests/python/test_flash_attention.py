# SPDX-License-Identifier: Apache-2.0
"""flash_attn_func and flash_attn_varlen_func: FlashAttention's names, order and results."""

import inspect

import pytest

torch = pytest.importorskip("torch", reason="the functions take torch tensors")

import flashmask  # noqa: E402

ORDER = ["dropout_p", "softmax_scale", "causal", "window_size", "softcap", "alibi_slopes", "deterministic"]


def draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def inputs(rows, columns, *, batch=2):
    q, k, v = draw(batch, rows, 4, 16, seed=1), draw(batch, columns, 2, 16, seed=2), draw(batch, columns, 2, 8, seed=3)
    return [each.requires_grad_() for each in (q, k, v)]


def dense(q, k, v, visible, scale):
    """o and lse by the formula; visible [rows, columns]."""
    k, v = (each.repeat_interleave(2, 2) for each in (k, v))
    scores = torch.einsum("bihd,bjhd->bhij", q.double(), k.double()) * scale
    scores = scores.masked_fill(~visible, -torch.inf)
    return torch.einsum("bhij,bjhd->bihd", scores.softmax(-1), v.double()), scores.logsumexp(-1)


def near(rows, columns, left, right):
    """Keys of a window around a query's own, both counted from the last."""
    distance = torch.arange(columns) - (torch.arange(rows)[:, None] + columns - rows)
    return (distance >= (-left if left >= 0 else -columns)) & (distance <= (right if right >= 0 else columns))


@pytest.mark.parametrize(
    ("causal", "window", "sides"),
    [(False, (-1, -1), (-1, -1)), (True, (-1, -1), (-1, 0)), (True, (3, 5), (3, 0)), (False, (3, 5), (3, 5))],
)
def test_batches_are_attended_as_flash_attention_documents(causal, window, sides):
    q, k, v = inputs(20, 24)
    found, lse, nothing = flashmask.flash_attn_func(
        q, k, v, 0.0, 0.3, causal, window, 0.0, None, deterministic=True, return_attn_probs=True
    )
    expected, expected_lse = dense(q, k, v, near(20, 24, *sides), 0.3)
    assert nothing is None and (flashmask.flash_attn_func(q, k, v, 0.0, 0.3, causal, window) == found).all()
    torch.testing.assert_close(found, expected.float(), atol=2e-6, rtol=1e-5)
    torch.testing.assert_close(lse, expected_lse.float(), atol=2e-6, rtol=1e-5)
    gradients = [torch.autograd.grad(each.square().sum(), (q, k, v)) for each in (found, expected)]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, atol=5e-6, rtol=1e-4)


def test_sequences_are_attended_one_by_one():
    q, k, v = (each.detach()[0] for each in inputs(20, 20))
    cu = torch.tensor([0, 7, 20], dtype=torch.int32)
    found, lse, _ = flashmask.flash_attn_varlen_func(
        q, k, v, cu, cu, 13, 13, 0.0, None, True, (4, 0), 0.0, None, False, True, None
    )
    for begin, end in ((0, 7), (7, 20)):
        alone = [each[None, begin:end] for each in (q, k, v)]
        expected, expected_lse = dense(*alone, near(end - begin, end - begin, 4, 0), 0.25)
        torch.testing.assert_close(found[begin:end], expected[0].float(), atol=2e-6, rtol=1e-5)
        torch.testing.assert_close(lse[:, begin:end], expected_lse[0].float(), atol=2e-6, rtol=1e-5)


def test_s_aux_is_a_key_of_value_0_with_a_gradient():
    q, k, v = inputs(12, 12)
    s_aux = draw(4, seed=4).requires_grad_()
    cu = torch.tensor([0, 12, 24], dtype=torch.int32)
    flat = [each.flatten(0, 1) for each in (q, k, v)]
    packed = flashmask.flash_attn_varlen_func(*flat, cu, cu, 12, 12, causal=True, s_aux=s_aux)
    found = flashmask.flash_attn_func(q, k, v, causal=True, s_aux=s_aux)
    without, lse = dense(q, k, v, near(12, 12, -1, 0), 0.25)
    expected = without * torch.sigmoid(lse - s_aux[:, None]).mT[..., None]  # the share that the keys keep
    torch.testing.assert_close(found, expected.float(), atol=2e-6, rtol=1e-5)
    torch.testing.assert_close(packed.unflatten(0, (2, 12)), found, atol=2e-6, rtol=1e-5)
    gradients = [torch.autograd.grad(each.square().sum(), (q, k, v, s_aux)) for each in (found, expected)]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other.float(), atol=5e-6, rtol=1e-4)


def test_arguments_stand_in_flash_attentions_order():
    of_batches = list(inspect.signature(flashmask.flash_attn_func).parameters)
    assert of_batches[:11] == ["q", "k", "v", *ORDER, "return_attn_probs"]
    of_sequences = list(inspect.signature(flashmask.flash_attn_varlen_func).parameters)
    lengths = ["cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k"]
    assert of_sequences[:16] == ["q", "k", "v", *lengths, *ORDER, "return_attn_probs", "block_table"]


@pytest.mark.parametrize("name", ["block_table", "num_splits"])
def test_what_nobody_serves_is_refused_by_name(name):
    q, k, v = (each.detach()[0] for each in inputs(8, 8))
    cu = torch.tensor([0, 8], dtype=torch.int32)
    given = {"num_splits": 2}.get(name, torch.zeros(4))
    with pytest.raises((ValueError, TypeError), match=name):
        flashmask.flash_attn_varlen_func(q, k, v, cu, cu, **{name: given})
    if name != "block_table":
        with pytest.raises((ValueError, TypeError), match=name):
            flashmask.flash_attn_func(q[None], k[None], v[None], **{name: given})


def test_dropout_comes_from_torchs_generator():
    q, k, v = inputs(16, 16)
    outputs = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        outputs.append(flashmask.flash_attn_func(q, k, v, dropout_p=0.5))
    assert (outputs[0] == outputs[1]).all() and not (outputs[0] == outputs[2]).all()


def test_bad_tensors_are_named():
    q, k, v = (each.detach() for each in inputs(8, 8))
    with pytest.raises(TypeError, match=r"q is list \[1\]; expected a torch tensor"):
        flashmask.flash_attn_func([1], k, v)
    with pytest.raises(TypeError, match="q, k and v have dtypes"):
        flashmask.flash_attn_func(q, k.double(), v)
