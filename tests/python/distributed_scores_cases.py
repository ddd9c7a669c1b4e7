# SPDX-License-Identifier: Apache-2.0
"""What test_distributed_scores.py has every rank run: softcap and ALiBi over ranks, against one process."""

import os
from functools import partial

import distributed_cases
import torch
import torch.distributed as dist
from distributed_cases import (
    DIM,
    FAMILIES,
    HEADS,
    KV_HEADS,
    TOLERANCE,
    aligned,
    case,
    cases,
    hold_results,
    inputs,
    loss_and_gradients,
    make,
    packed,
    raise_on_all_ranks,
    refused,
    with_gradients,
)
from torch.utils.checkpoint import checkpoint

import flashmask
import flashmask.distributed as fmd
import flashmask.operators
from flashmask import masks, scores
from flashmask._torch.dropout import seed_offset_of

distributed_cases.CASES.clear()  # those without changes of scores
CASES = distributed_cases.CASES
SLOPES = 2.0 ** -torch.arange(1.0, HEADS + 1)


def positions_of(tokens, batch=1):
    """Some that are nobody's default: three answers to a question, and each batch entry shifted by its own number."""
    question, answer = tokens // 4, tokens // 4
    of_answers = [question + torch.arange(answer)] * 2 + [question + torch.arange(tokens - question - 2 * answer)]
    return torch.cat([torch.arange(question), *of_answers]) + 7 * torch.arange(batch)[:, None]


CHANGES = {
    "softcap": lambda tokens, batch: {"softcap": 2.0},
    "slopes": lambda tokens, batch: {"alibi_slopes": SLOPES},
    "slopes of entries and a softcap": lambda tokens, batch: {
        "softcap": 1.5,
        "alibi_slopes": SLOPES * torch.arange(1.0, batch + 1)[:, None],
    },
    "positions": lambda tokens, batch: {
        "alibi_slopes": SLOPES,
        "query_positions": positions_of(tokens),
        "key_positions": positions_of(tokens).int(),
    },
    "positions of entries": lambda tokens, batch: {
        "alibi_slopes": SLOPES,
        "query_positions": positions_of(tokens, batch),
        "key_positions": positions_of(tokens, batch).flip(0),
    },
}


def of_rank(changes, sharding):
    """The changes with this rank's positions."""
    return {name: sharding.shard(each) if "positions" in name else each for name, each in changes.items()}


def one_device(mask, changes, dropout):
    if not dropout:
        return partial(flashmask.attention, mask=mask, return_lse=True, **changes)

    def attend(q, k, v):
        seed = seed_offset_of(None, dropout, q.device)
        given = dict(changes)
        steps = [f"softcap({given.pop('softcap')})"] if "softcap" in given else []
        given["change"] = " | ".join(steps + ["alibi"] * ("alibi_slopes" in given))
        return flashmask.operators.forward(q, k, v, mask.tensor, None, False, 0.0, dropout, seed, **given)

    return attend


def hold(group, mask, kind, dtype=torch.float32, batch=1, wrap=None, dropout=0.0, **options):
    """All results are those of flashmask.attention() with the same changes: bits where docs/several_gpus.md says so."""
    tokens = mask.shape.rows
    whole, changes = inputs(tokens, dtype, batch), CHANGES[kind](tokens, batch)
    torch.manual_seed(5)
    expected = with_gradients(one_device(mask, changes, dropout), *whole)
    sharding = make(group, mask, query_heads=HEADS, kv_heads=KV_HEADS, head_dim=DIM, tokens=None, **options)
    own = {**of_rank(changes, sharding), **({"dropout_p": dropout} if dropout else {})}
    compute = partial(fmd.attention, sharding=sharding, return_lse=True, **own)
    local = [*sharding.shard(*whole[:4]), sharding.shard(whole[4], dim=2)]
    torch.manual_seed(5 + dist.get_rank(group))
    found = with_gradients(wrap(compute) if wrap else compute, *local)
    owner = options.get("gradients") == "owner"
    hold_results(sharding, group, found, expected, 2 * TOLERANCE[dtype], f"{kind}, {dtype}", owner)
    return sharding


@cases((2, 3, 4), kind=CHANGES)
def rows_give_the_bits_of_one_process(group, rank, kind):
    for family, partition, gradients, dtype, tokens in (
        ("causal", "zigzag", "reduced", torch.float32, 500),
        ("documents", "balanced", "owner", torch.float32, 700),
        ("shared questions", "random", "owner", torch.bfloat16, 700),
        ("full", "contiguous", "reduced", torch.float64, 200),
        ("dilated", "random", "reduced", torch.float32, 500),
        ("nothing", "zigzag", "owner", torch.float32, 300),
    ):
        options = aligned(partition, tokens, group.size())
        hold(group, FAMILIES[family](tokens), kind, dtype, 2, scheme="rows", gradients=gradients, **options)


@cases((2,), kind=CHANGES)
def heads_give_the_bits_of_one_process(group, rank, kind):
    for family, dtype in (("causal", torch.float32), ("documents", torch.bfloat16), ("dilated", torch.float64)):
        hold(group, FAMILIES[family](500), kind, dtype, 2, scheme="heads", partition="zigzag")


@case(1, 3)
def heads_over_other_numbers_of_ranks(group, rank):
    mask, ranks = FAMILIES["documents"](600), group.size()
    slopes, positions = 2.0 ** -torch.arange(1.0, 2 * ranks + 1), positions_of(600)
    generator = torch.Generator().manual_seed(3)
    q, k, v = (torch.randn(1, 600, heads, DIM, generator=generator) for heads in (2 * ranks, ranks, ranks))
    sharding = fmd.shard(mask, group, query_heads=2 * ranks, kv_heads=ranks, head_dim=DIM, scheme="heads")
    whole = {"alibi_slopes": slopes, "query_positions": positions, "key_positions": positions, "softcap": 3.0}
    expected = flashmask.attention(q, k, v, mask, **whole)
    found = fmd.attention(*sharding.shard(q, k, v), sharding, **of_rank(whole, sharding))
    raise_on_all_ranks(group, "" if torch.equal(found, sharding.shard(expected)) else "o is not that of one process")


@case(4)
def some_ranks_have_no_rows(group, rank):
    for kind in CHANGES:
        for options in ({"gradients": "owner"}, {"keep_fetched": True}, {}):
            sharding = hold(group, masks.causal(203, 203), kind, batch=2, scheme="rows", **options)
            assert 0 in sharding.lengths


@case(3)
def ranks_that_fetch_nothing_count_from_the_start_of_the_sequence(group, rank):
    """Attention then runs as on one device, on the second document alone."""
    runs = [(0, 256, 0), (256, 640, 1), (640, 768, 2)]
    partition = fmd.Partition.from_runs(768, 3, runs)
    for kind in CHANGES:
        sharding = hold(group, masks.causal_document([256, 384, 128]), kind, scheme="rows", partition=partition)
        assert sharding._locals["mask"].alone


@cases((2,), option=["head_groups", "keep_fetched", "checkpoint"])
def other_ways_to_hold_keys_change_no_bit(group, rank, option):
    given = {"head_groups": {"head_groups": 2}, "keep_fetched": {"keep_fetched": True}}.get(option, {})

    def checkpointed(compute):
        return lambda *tensors: checkpoint(compute, *tensors, use_reentrant=False)

    for kind in CHANGES:
        wrap = checkpointed if option == "checkpoint" else None
        for gradients in ("reduced", "owner"):
            all_given = {**given, "gradients": gradients, "scheme": "rows", "partition": "zigzag", "aligned": True}
            hold(group, FAMILIES["documents"](600), kind, batch=2, wrap=wrap, **all_given)


@cases((2,), scheme=["rows", "heads"])
def compiled_calls_give_the_same_bits(group, rank, scheme):
    def in_a_graph(compute):
        torch._dynamo.reset()
        return torch.compile(compute, backend="aot_eager", fullgraph=True)

    for kind in CHANGES:
        hold(group, FAMILIES["documents"](600), kind, batch=2, wrap=in_a_graph, scheme=scheme, aligned=True)


@cases((2,), scheme=["rows", "heads"])
def dropout_beside_changes_is_that_of_one_process(group, rank, scheme):
    options = {"gradients": "owner"} if scheme == "rows" else {}
    for kind in CHANGES:
        hold(group, FAMILIES["documents"](600), kind, batch=2, dropout=0.3, scheme=scheme, aligned=True, **options)


@case(2)
def sinks_and_several_masks_go_with_changes(group, rank):
    near, far = masks.sliding_window(512, 512, 100), masks.causal(512, 512)
    sharding = make(group, far, masks={"near": near}, scheme="rows", aligned=True)
    q, k, v, *_ = inputs(512, torch.float32, 1)
    sinks = torch.tensor([0.5, -1.0, 2.0, 0.0])
    given = {"sinks": sinks, "softcap": 2.0, "alibi_slopes": SLOPES}
    for name, mask in (("mask", far), ("near", near)):
        change = scores.softcap(2.0) | scores.alibi(SLOPES)
        found = fmd.attention(*sharding.shard(q, k, v), sharding, mask=name, sinks=sinks, score=change)
        assert torch.equal(found, sharding.shard(flashmask.attention(q, k, v, mask, **given)))


@case(2)
def documents_over_heads_have_the_bits_that_they_have_alone(group, rank):
    lengths = [100, 300, 112]
    q, k, v, *_ = inputs(512, torch.float32, 1)
    sharding = make(group, masks.causal_document(lengths), scheme="heads", partition="zigzag")
    given = {"softcap": 2.0, "alibi_slopes": SLOPES, "invariant": True}
    change = scores.softcap(2.0) | scores.alibi(SLOPES)
    found = fmd.attention(*sharding.shard(q, k, v), sharding, score=change, invariant=True)
    parts = zip(*(each.split(lengths, 1) for each in (q, k, v)), strict=True)
    alone = [flashmask.attention(*part, masks.causal(*[part[0].shape[1]] * 2), **given) for part in parts]
    assert torch.equal(found, sharding.shard(torch.cat(alone, 1)))


@cases((2,), scheme=["rows", "heads"])
def what_does_not_fit_is_refused_before_anything_is_sent(group, rank, scheme):
    sharding = make(group, masks.causal(512, 512), scheme=scheme, partition="contiguous", aligned=True)
    q = torch.randn(1, 256, 4, 16)
    call = partial(fmd.attention, q, q[:, :, :2], q[:, :, :2], sharding)
    positions, whole = torch.arange(256)[None], torch.arange(512)[None]
    for given, kind, message in (
        ({"softcap": -1.0}, ValueError, "^softcap is -1"),
        ({"alibi_slopes": SLOPES.double()}, TypeError, "^alibi_slopes has dtype torch.float64"),
        ({"alibi_slopes": SLOPES[:3]}, ValueError, r"^alibi_slopes has shape \[3\]; expected \[4\], one for each head"),
        ({"alibi_slopes": [0.5] * 4}, TypeError, "^alibi_slopes is list"),
        ({"alibi_slopes": SLOPES.clone().requires_grad_()}, ValueError, "^alibi_slopes requires a gradient"),
        ({"query_positions": positions}, ValueError, "^positions are given without alibi_slopes"),
        ({"alibi_slopes": SLOPES, "key_positions": positions}, ValueError, "give both or none"),
        (
            {"alibi_slopes": SLOPES, "query_positions": whole, "key_positions": whole},
            ValueError,
            r"^query_positions has shape \[1, 512\]; expected \[1, 256\]",
        ),
        ({"bias": torch.zeros(1, 1, 512, 512)}, NotImplementedError, "^bias is .* serves no biases"),
        ({"distance_bias": torch.zeros(1, 4, 1, 9)}, NotImplementedError, "^distance_bias is .* serves no biases"),
        ({"score": scores.bias(torch.zeros(1, 1, 512, 512))}, NotImplementedError, "^bias is .* serves no biases"),
        ({"dropout": 0.1}, TypeError, r"does not take dropout, .*; pass it as dropout_p$"),
    ):
        refused(kind, message, partial(call, **given))
    call(softcap=2.0, alibi_slopes=SLOPES)


@case(2)
def ranks_that_differ_are_named_where_that_is_asked_for(group, rank):
    os.environ["FLASHMASK_CHECK_RANKS"] = "1"
    try:
        sharding = make(group, masks.causal(512, 512), scheme="rows", aligned=True)
        q = torch.randn(1, sharding._held, 4, 16)
        call = partial(fmd.attention, q, q[:, :, :2], q[:, :, :2], sharding)
        positions = torch.arange(sharding._held)[None] if rank else None
        slopes = {"alibi_slopes": SLOPES}
        for given, what in (
            ({"softcap": 2.0 + rank}, "calls"),
            ({"alibi_slopes": SLOPES * (1 + rank)}, "slopes"),
            ({**slopes, "query_positions": positions, "key_positions": positions}, "calls"),
        ):
            refused(ValueError, f"^the {what} of rank 1 differ", partial(call, **given))
        call(softcap=2.0, **slopes)
    finally:
        del os.environ["FLASHMASK_CHECK_RANKS"]


@case(2)
def the_operator_passes_opcheck(group, rank):
    tokens = 300
    whole = inputs(tokens, torch.float32, 1)[:3]
    sharding = make(group, masks.causal(tokens, tokens), tokens=None, scheme="rows", partition="zigzag")
    tensors = [each.requires_grad_() for each in sharding.shard(*(each.detach() for each in whole))]
    where = sharding._tensors["mask"], sharding._name
    positions = sharding.shard(positions_of(tokens))
    given = 0.0, None, None, "softcap(2.0) | alibi", SLOPES, positions, positions.clone()
    torch.library.opcheck(torch.ops.flashmask.shard_forward.default, (*tensors, *where, 0.0, True, 0, *given))


# ---- Transformers ----


def tiny(kind):
    import transformers

    import flashmask.transformers

    flashmask.transformers.register()
    config = {"gemma2": transformers.Gemma2Config, "vaultgemma": transformers.VaultGemmaConfig}[kind](
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, head_dim=8, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=2048, attn_logit_softcapping=1.5, sliding_window=100,
        layer_types=["sliding_attention", "full_attention"],
    )  # fmt: skip
    config._attn_implementation = "flashmask"
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).train()
    for name, parameter in model.named_parameters():
        if "q_proj" in name or "k_proj" in name:
            torch.nn.init.normal_(parameter, std=0.5)  # for scores that a cap changes
    return model


@cases((2, 4), kind=["gemma2", "vaultgemma"])
def capped_models_have_the_losses_and_gradients_of_one_process(group, rank, kind):
    from flashmask.transformers import shard

    model, batch = tiny(kind), packed(700)
    expected, gradients = loss_and_gradients(model, batch)
    for scheme in ("rows", "heads")[: 2 if group.size() == 2 else 1]:
        local = shard(model, batch, group, aligned=True, scheme=scheme)
        found, mine = loss_and_gradients(model, local, local["sharding"])
        dist.all_reduce(mine, group=group)
        assert abs(found - expected) < 1e-5, f"{found} is not {expected}"
        error = (mine / group.size() - gradients).norm() / gradients.norm()
        assert error < 4e-5, f"gradients are {error} away"
    for layer in model.model.layers:
        layer.self_attn.attn_logit_softcapping = None
    _, uncapped = loss_and_gradients(model, batch)
    assert (uncapped - gradients).norm() / gradients.norm() > 1e-3, "the cap changes nothing here"


@case(2)
def models_of_an_encoder_and_a_decoder_are_refused(group, rank):
    import transformers

    from flashmask.transformers import register, shard

    register()
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "head_dim": 8, "vocab_size": 64}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    encoder, decoder = (transformers.T5GemmaModuleConfig(**sizes, **heads) for _ in range(2))
    config = transformers.T5GemmaConfig(encoder=encoder, decoder=decoder, vocab_size=64)
    model = transformers.AutoModelForSeq2SeqLM.from_config(config, attn_implementation="flashmask")
    refused(ValueError, "^the model is a T5GemmaForConditionalGeneration, of", lambda: shard(model, packed(300), group))
