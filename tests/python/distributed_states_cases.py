# SPDX-License-Identifier: Apache-2.0
"""What test_distributed_states.py has every rank run: layers with a state over ranks, against one process."""

import os
from functools import partial

import distributed_cases
import torch
import torch.distributed as dist
from distributed_cases import case, cases, make, raise_on_all_ranks, random_partition, refused
from docs_scripts import docs_script
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

import flashmask
import flashmask.distributed as fmd
from flashmask import masks, recurrent
from flashmask.transformers import register, shard

register()
families = docs_script("transformers_families")

distributed_cases.CASES.clear()
CASES = distributed_cases.CASES
TOKENS, HEADS = 60, 10
LENGTHS, PROMPT, ANSWERS = (23, 1, 30, 6), 20, (5, 1, 34)
#: One of each kind of layer: both delta rules, both scans, with norms across heads and within, short convolutions.
QUICK = ("qwen3_next", "kimi_linear", "bamba", "mamba2", "zamba", "lfm3")
ALL = (
    *("bailing_hybrid", "falcon_h1", "falcon_mamba", "granitemoehybrid", "jamba", "lara_mini", "lfm2", "lfm2_moe"),
    *("mamba", "nemotron_h", "olmo_hybrid", "qwen3_5_moe_text", "qwen3_5_text", "zamba2"),
)
FIRST_MAMBA = ("falcon_mamba", "jamba", "mamba", "zamba")  # whose scan takes no state to begin from
#: Of models whose tiny size has too few heads for three ranks.
MORE_HEADS = dict.fromkeys(("lara_mini", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next"), ("linear_num_value_heads",))
MORE_HEADS["olmo_hybrid"] = ("linear_num_value_heads", "linear_num_key_heads")


def forked():
    """A document, a prompt with two answers of which the second one forks again, and padding."""
    ends = [15] * 15 + [52] * 10 + [30] * 5 + [45] * 6 + [40] * 4 + [45] * 5 + [52] * 7 + [60] * 8
    rows = torch.tensor(ends, dtype=torch.int32)[None, None, :, None]
    return masks.from_startend_row_indices(rows, causal=True)


MASKS = {
    "causal": lambda: masks.causal(TOKENS, TOKENS),
    "documents": lambda: masks.causal_document([11, 1, 2, 29, 17], TOKENS),
    "padded documents": lambda: masks.causal_document([30, 20], TOKENS),
    "shared prompt": lambda: masks.shared_question([(PROMPT, list(ANSWERS))], TOKENS),
    "forks of forks": forked,
}


def sharding_of(group, mask, **options):
    """One whose runs are of five tokens, some of them next to others of the same rank."""
    options = {"partition": random_partition(TOKENS, group.size(), tile=5), **options}
    return make(group, mask, tokens=None, **options)


def decayed(k, v, g, initial_state=None, output_final_state=False, parameters=(None,)):
    """A recurrence of one sequence, (1, length, heads, dim) with gates (1, length, heads); k may have fewer heads."""
    (bias,) = parameters
    k = k.repeat_interleave(v.shape[2] // k.shape[2], 2)
    state = v.new_zeros(1, v.shape[2], k.shape[3], v.shape[3]) if initial_state is None else initial_state
    outputs = []
    for t in range(k.shape[1]):
        rate = g[:, t] if bias is None else g[:, t] + bias
        state = rate.sigmoid()[..., None, None] * state + k[:, t, :, :, None] * v[:, t, :, None]
        outputs.append((k[:, t, :, :, None] * state).sum(2))
    return torch.stack(outputs, 1), state


def tensors(batch, groups, dtype=torch.float32):
    draw = torch.Generator().manual_seed(3)
    shapes = (batch, TOKENS, groups, 3), (batch, TOKENS, HEADS, 5), (batch, TOKENS, HEADS), (HEADS,)
    return [torch.randn(shape, generator=draw).to(dtype) for shape in shapes]


def hold_against_whole(sharding, group, whole, of_rank, given, parameters, name, tolerance=1e-5, bits=True):
    """Outputs have the bits of one process; gradients are within the tolerance of its own."""
    leaves = [each.clone().requires_grad_() for each in (*given, *parameters)]
    expected = whole(*leaves)
    weight = torch.randn(expected.shape, generator=torch.Generator().manual_seed(4))
    (expected * weight).sum().backward()
    held = [sharding.shard(each).requires_grad_() for each in given]
    mine = [each.clone().requires_grad_() for each in parameters]
    found = of_rank(*held, *mine)
    (found * sharding.shard(weight)).sum().backward()
    same = torch.equal if bits else partial(torch.allclose, rtol=1e-5, atol=1e-5 * float(expected.abs().max()))
    wrong = "" if same(found, sharding.shard(expected)) else f"{name}: outputs are others"
    gradients = [sharding.unshard(each.grad) for each in held]
    for each in mine:
        dist.all_reduce(each.grad, group=group)
        gradients.append(each.grad)
    for place, (gradient, leaf) in enumerate(zip(gradients, leaves, strict=True)):
        error = float((gradient - leaf.grad).abs().max() / leaf.grad.abs().max())
        if error > tolerance:
            wrong = wrong or f"{name}: gradient {place} is {error} away"
    raise_on_all_ranks(group, wrong)


# ---- layers ----


@cases((2, 3), family=MASKS)
def convolutions_and_recurrences_have_the_bits_of_one_process(group, rank, family):
    mask = MASKS[family]()
    nodes, sharding = flashmask.nodes(mask), sharding_of(group, mask)
    run = recurrent.one_by_one(decayed)
    for groups, batch in ((1, 1), (2, 2), (5, 1)):
        k, v, g, bias = tensors(batch, groups)
        hold_against_whole(
            *(sharding, group),
            lambda k, v, g, bias: recurrent.over_nodes(partial(run, parameters=(bias,)), nodes, k, v, g),
            lambda k, v, g, bias: fmd.over_nodes(run, sharding, k, v, g, parameters=(bias,)),
            *((k, v, g), (bias,), f"{groups} groups"),
        )
    draw = torch.Generator().manual_seed(5)
    for width, batch in ((1, 1), (4, 1), (9, 2)):  # wider than a run of a rank
        x, weight, bias = (torch.randn(shape, generator=draw) for shape in ((batch, TOKENS, 6), (6, width), (6,)))
        hold_against_whole(
            *(sharding, group),
            lambda x, weight, bias: recurrent.causal_conv(x, weight, bias, nodes=nodes),
            lambda x, weight, bias: fmd.causal_conv(x, weight, bias, sharding=sharding),
            *((x,), (weight, bias), f"width {width}"),
        )


@cases((2, 3), family=["documents", "shared prompt"])
def linear_attention_has_the_bits_of_one_process(group, rank, family):
    mask = MASKS[family]()
    sharding = sharding_of(group, mask)
    k, v, g, decay = tensors(2, 2)
    forget = g.sigmoid().log()
    hold_against_whole(
        *(sharding, group),
        lambda q, k, v, forget: flashmask.linear_attention(q, k, v, forget, mask=mask),
        lambda q, k, v, forget: fmd.linear_attention(q, k, v, forget, sharding=sharding),
        *((k + 1, k, v, forget), (), "a decay of tokens"),
    )
    hold_against_whole(
        *(sharding, group),
        lambda q, k, v, decay: flashmask.linear_attention(q, k, v, -decay.square(), mask=mask, normalize=True),
        lambda q, k, v, decay: fmd.linear_attention(q, k, v, -decay.square(), sharding=sharding, normalize=True),
        *((k + 1, k, v), (decay,), "a decay of heads"),
    )


@cases((2, 3), family=["causal", "documents", "padded documents"])
def linear_attention_by_rows_is_that_of_one_process(group, rank, family):
    mask = MASKS[family]()
    k, v, g, decay = tensors(2, 2)
    forget, inside = g.sigmoid().log(), 3 * g.flip(1)
    runs = [(0, 23, 0), (23, 40, 1), (40, TOKENS, 1)], [(0, 7, 0), (7, TOKENS, 1)]  # of three, the last has none here
    if group.size() == 3:
        runs[0][2] = (40, TOKENS, 2)
    for partition in (fmd.Partition.from_runs(TOKENS, group.size(), each, tile=1) for each in runs):
        sharding = sharding_of(group, mask, partition=partition)
        for given, own, normalize in (
            ((k + 1, k, v, forget, inside), (), False),
            ((k + 1, k, v, forget, inside), (), True),
            ((k + 1, k, v), (decay,), True),
        ):
            hold_against_whole(
                *(sharding, group),
                lambda *of, n=normalize: flashmask.linear_attention(*signed(*of), mask=mask, normalize=n),
                lambda *of, n=normalize, s=sharding: fmd.linear_attention(
                    *signed(*of), sharding=s, normalize=n, by="rows"
                ),
                *(given, own, f"{partition}, normalize {normalize}"),
                bits=False,
            )


def signed(q, k, v, forget, *others):
    """A decay of heads is any number; what counts is minus its square."""
    return q, k, v, -forget.square() if forget.ndim == 1 else forget, *others


@case(3)
def by_rows_a_document_changes_no_bit_of_another(group, rank):
    mask, found = masks.causal_document([11, 39, 10], TOKENS), []  # the second one is on all ranks
    thirds = fmd.Partition.from_runs(TOKENS, 3, [(0, 20, 0), (20, 40, 1), (40, 60, 2)], tile=1)
    sharding = sharding_of(group, mask, partition=thirds)
    for place, value in ((0, None), (5, float("nan")), (15, 9.0), (30, float("nan")), (55, 9.0)):
        k, v, g, _ = tensors(1, 2)
        if value is not None:
            v[0, place] = value
        held = [sharding.shard(each).requires_grad_() for each in (k, v, g)]
        o = fmd.linear_attention(held[0], held[0], held[1], held[2].sigmoid().log(), sharding=sharding, by="rows")
        o.square().sum().backward()
        found.append(sharding.unshard(torch.cat([each.flatten(2) for each in (o, *(each.grad for each in held))], 2)))
    wrong = ""
    for result, document in zip(found[1:], ((0, 11), (11, 50), (11, 50), (50, 60)), strict=True):
        others = [token for token in range(TOKENS) if not document[0] <= token < document[1]]
        if not torch.equal(found[0][:, others], result[:, others]):
            wrong = f"the document at {document} reaches others"
        if torch.equal(found[0], result):
            wrong = f"nothing changed in {document}"
    raise_on_all_ranks(group, wrong)


@case(3)
def gradients_of_a_shared_group_in_16_bits_are_rounded_once(group, rank):
    """Three ranks have gradients of the one group: 1 + 2^-8 + 2^-8 is lost where each addition rounds."""
    sharding = sharding_of(group, MASKS["causal"]())
    k = torch.ones(1, len(sharding.positions), 1, 1, dtype=torch.bfloat16, requires_grad=True)
    v = torch.ones(1, len(sharding.positions), 3, 1, dtype=torch.bfloat16)
    factor = torch.tensor([1.0, 2.0**-8, 2.0**-8]).bfloat16()

    def run(k, v, cu_seqlens, initial_state, output_final_state, parameters):
        return k.expand_as(v) * parameters[0][:, None], None

    fmd.over_nodes(run, sharding, k, v, parameters=(factor,)).sum().backward()
    wrong = "" if bool((k.grad == 1 + 2.0**-7).all()) else f"the gradients are {k.grad.flatten()[:3].tolist()}"
    raise_on_all_ranks(group, wrong)


@cases((2, 3), batch=[1, 2])
def heads_of_any_width_dtype_and_stride_arrive(group, rank, batch):
    """Views at odd places in a wider tensor, of three dtypes; what arrives has no gaps and may be changed in place."""
    for partition in ("contiguous", random_partition(TOKENS, group.size(), tile=5)):
        sharding = sharding_of(group, MASKS["documents"](), partition=partition)
        draw = torch.Generator().manual_seed(6)
        wide = torch.randint(-9, 9, (batch, TOKENS, 1 + 6 * 3), generator=draw)
        k, v = wide[..., 1:].unflatten(-1, (6, 3)).to(torch.bfloat16), wide[..., 1:].unflatten(-1, (6, 3)).double()
        g = wide[..., 3:9].float()
        given = [sharding.shard(torch.nn.functional.pad(each.flatten(2), (1, 0)))[..., 1:] for each in (k, v, g)]
        held = [each.unflatten(-1, (6, -1)).requires_grad_() for each in given]

        def run(k, v, g, cu_seqlens, initial_state, output_final_state):
            assert k.is_contiguous() and v.is_contiguous() and g.is_contiguous()
            return v.mul_(2).add_(g) + k, None

        (fmd.over_nodes(run, sharding, *held) * sharding.shard(v)).sum().backward()
        found = fmd.over_nodes(run, sharding, *(each.detach() for each in held))
        right = torch.equal(found, sharding.shard(2 * v + wide[..., 3:9, None] + k))
        right = right and torch.equal(held[1].grad, sharding.shard(2 * v))
        right = right and torch.equal(held[2].grad[..., 0], sharding.shard(v.sum(-1).float()))
        raise_on_all_ranks(group, "" if right else f"{partition}: other numbers")


@case(2)
def a_rank_without_tokens_takes_part(group, rank):
    mask = MASKS["documents"]()
    everything = fmd.Partition.from_runs(TOKENS, 2, [(0, TOKENS, 1)], tile=1)
    sharding, nodes = sharding_of(group, mask, partition=everything), flashmask.nodes(mask)
    run = recurrent.one_by_one(decayed)
    k, v, g, _ = tensors(1, 2)
    expected = recurrent.over_nodes(run, nodes, k, v, g)
    held = [sharding.shard(each).requires_grad_() for each in (k, v, g)]
    found = fmd.over_nodes(run, sharding, *held)
    found.sum().backward()
    y = fmd.causal_conv(sharding.shard(k[:, :, 0]), torch.ones(3, 4), sharding=sharding)
    raise_on_all_ranks(group, "" if torch.equal(found, sharding.shard(expected)) else "outputs differ")
    raise_on_all_ranks(group, "" if y.shape == (1, len(sharding.positions), 3) else f"{y.shape}")


@case(3)
def layers_that_do_not_fit_are_refused(group, rank):
    sharding = sharding_of(group, MASKS["documents"]())
    held = len(sharding.positions)
    two, three, four, eight = (torch.ones(1, held, heads, 3) for heads in (2, 3, 4, 8))
    run = partial(fmd.over_nodes, recurrent.one_by_one(decayed), sharding)
    refused(ValueError, "^the layer has 2 heads, and the sequence is spread over 3 ranks", lambda: run(two, two))
    refused(ValueError, rf"^input 0 has shape .*expected \(batch, {held}, \.\.\.\)", lambda: run(four[:, 1:]))
    refused(ValueError, "^over_nodes: there are no inputs", lambda: run(None))
    refused(ValueError, "a number of heads that divides 4", lambda: run(three, four))
    refused(ValueError, r"^a parameter .*\[3\]; expected \(4, ", lambda: run(four, four, parameters=(torch.ones(3),)))
    rows = partial(fmd.linear_attention, four, four, four, by="rows")
    refused(ValueError, '^by="rows" came to a sharding whose ranks hold several runs', lambda: rows(sharding=sharding))
    thirds = fmd.Partition.from_runs(TOKENS, 3, [(0, 20, 0), (20, 40, 1), (40, 60, 2)], tile=1)
    forks = sharding_of(group, MASKS["shared prompt"](), partition=thirds)
    third = torch.ones(1, len(forks.positions), 4, 3)
    rows = partial(fmd.linear_attention, third, third, third, sharding=forks)
    refused(ValueError, '^by="rows" came with a mask under which sequences fork', lambda: rows(by="rows"))
    refused(ValueError, "^by is 'columns'", lambda: rows(by="columns"))
    x, weight = two[:, :, 0], torch.ones(3, 4)
    refused(ValueError, "^x has shape", lambda: fmd.causal_conv(x[:, 1:], weight, sharding=sharding))
    refused(TypeError, "^sharding is", lambda: fmd.causal_conv(x, weight, sharding=None))
    window = sharding_of(group, masks.sliding_window(TOKENS, TOKENS, 9))
    refused(ValueError, "column 1 is seen by row", lambda: fmd.causal_conv(x, weight, sharding=window))
    os.environ["FLASHMASK_CHECK_RANKS"] = "1"
    try:  # names the rank that calls with other heads, rather than waiting for what it sends
        given = eight if rank == 1 else four
        refused(ValueError, "^the calls of rank 1 differ", lambda: run(given, given, given[..., 0]))
    finally:
        del os.environ["FLASHMASK_CHECK_RANKS"]


# ---- Transformers ----


def tiny(family, ranks):
    """A tiny model with at least as many heads as ranks, and groups of them that three ranks do not divide."""
    own = families._OWN.get(family, {})
    more = dict.fromkeys(MORE_HEADS.get(family, ()), 4) if ranks > 2 else {}
    families._OWN[family] = {**own, **more}
    try:
        model = families.make(family, "flashmask").train()
    finally:
        families._OWN[family] = own
    for each in model.modules():
        if isinstance(each, torch.nn.Dropout):
            each.p = 0.0
    return model


def batches(family):
    """Packed documents, a shared prompt, and a sequence with padding behind it beside one that fills its row."""
    ids = torch.randint(3, 60, (2, TOKENS), generator=torch.Generator().manual_seed(1))
    positions = torch.cat([torch.arange(length) for length in LENGTHS])[None]
    found = {"packed": {"input_ids": ids[:1], "position_ids": positions}}
    if family not in FIRST_MAMBA:
        rows = torch.from_numpy(MASKS["shared prompt"]().to_startend_row_indices()[0])
        after = [PROMPT + torch.arange(length) for length in ANSWERS]
        positions = torch.cat([torch.arange(PROMPT), *after])[None]
        found["forked"] = {"input_ids": ids[:1], "startend_row_indices": rows, "position_ids": positions}
    mask = torch.ones(2, TOKENS, dtype=torch.long)
    mask[1, 41:] = 0
    found["padded"] = {"input_ids": ids, "attention_mask": mask}
    return found


def results(model, weight, **inputs):
    logits = model(**inputs).logits
    model.zero_grad()
    (logits * weight).sum().backward()
    return logits.detach(), {name: each.grad for name, each in model.named_parameters() if each.grad is not None}


def held_in(batch, logits):
    """Which logits count, (batch, tokens, 1): those of padding do not."""
    return batch.get("attention_mask", torch.ones(logits.shape[:2]))[..., None]


@cases((2, 3), family=ALL + QUICK if os.environ.get("FLASHMASK_FAMILIES") == "all" else QUICK)
def models_have_the_logits_and_gradients_of_one_process(group, rank, family):
    model = tiny(family, group.size())
    for kind, batch in batches(family).items():
        with torch.no_grad():
            shape = model(**batch, use_cache=False).logits.shape
        weight = torch.randn(shape, generator=torch.Generator().manual_seed(2)) * held_in(batch, torch.empty(shape))
        expected, gradients = results(model, weight, **batch, use_cache=False)
        gradients = {name: each.clone() for name, each in gradients.items()}
        local = shard(model, batch, group, partition=random_partition(TOKENS, group.size(), tile=5))
        sharding = local["sharding"]
        found, mine = results(model, sharding.shard(weight), **local)
        errors = {"logits": (sharding.unshard(found) - expected) * held_in(batch, expected) / expected.abs().max()}
        for name, gradient in gradients.items():
            total = mine.get(name, torch.zeros_like(gradient)).clone()
            dist.all_reduce(total, group=group)
            errors[name] = (total - gradient) / max(float(gradient.abs().max()), 1e-3)
        # Tiny models with random weights amplify rounding: three gradients of all families are 1.0e-5 to 2.1e-5 away.
        far = {name: float(each.abs().max()) for name, each in errors.items() if float(each.abs().max()) > 4e-5}
        raise_on_all_ranks(group, f"{kind}: {far}" if far else "")


@cases((3,), family=["qwen3_next", "bamba", "lfm3"])
def a_document_changes_no_bit_of_another(group, rank, family):
    model = tiny(family, 3).eval()
    batch, logits = batches(family)["packed"], []
    for changed in (None, 30):  # in the third document: 24 to 53
        ids = batch["input_ids"].clone()
        if changed is not None:
            ids[0, changed] = (ids[0, changed] + 7) % 50 + 3
        local = shard(model, {**batch, "input_ids": ids}, group, partition=random_partition(TOKENS, 3, tile=5))
        with torch.no_grad():
            logits.append(local["sharding"].unshard(model(**local).logits))
    moved = (logits[0] != logits[1]).any(-1)[0].nonzero().flatten().tolist()
    raise_on_all_ranks(group, "" if moved == list(range(30, 54)) else f"{moved}")


@cases((2,), family=["qwen3_next", "mamba2", "zamba"])
def losses_are_those_of_one_process_also_with_checkpoints(group, rank, family):
    model = tiny(family, 2)
    batch = batches(family)["packed"]
    batch["labels"] = batch["input_ids"].masked_fill(batch["position_ids"] == 0, -100)
    expected, gradients = distributed_cases.loss_and_gradients(model, batch)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    local = shard(model, batch, group, partition=random_partition(TOKENS, 2, tile=5))
    found, mine = distributed_cases.loss_and_gradients(model, local, local["sharding"])
    dist.all_reduce(mine, group=group)
    error = float((mine / 2 - gradients).norm() / gradients.norm())
    wrong = abs(found - expected) > 1e-5 * expected or error > 2e-5
    raise_on_all_ranks(group, f"{found} is not {expected}, or gradients are {error} away" if wrong else "")


@cases((2,), family=["qwen3_next", "jamba", "mamba"])  # the last two hand a mask alone on, by the names of classes
def under_fsdp2_losses_and_gradients_are_those_of_one_process(group, rank, family):
    model, batch = tiny(family, 2), batches(family)["packed"]
    batch["labels"] = batch["input_ids"].masked_fill(batch["position_ids"] == 0, -100)
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())  # Mamba's is that of embeddings
    expected, gradients = distributed_cases.loss_and_gradients(model, batch)
    mesh = DeviceMesh.from_group(group, "cpu")
    for layer in model.base_model.layers:
        for each in layer.modules():
            if type(each).__name__.endswith(("GatedDeltaNet", "Mixer")):
                fully_shard(each, mesh=mesh)
        fully_shard(layer, mesh=mesh)
    fully_shard(model.base_model, mesh=mesh)
    fully_shard(model, mesh=mesh)
    local = shard(model, batch, group, partition=random_partition(TOKENS, 2, tile=5))
    loss = local["sharding"].mean(
        model(**local, num_items_in_batch=1, use_cache=False).loss, (local["shift_labels"] != -100).sum()
    )
    loss.backward()
    mine = torch.cat([each.grad.full_tensor().flatten() for each in model.parameters()])
    error = float((mine - gradients).norm() / gradients.norm())
    wrong = abs(loss.item() - expected) > 1e-5 * expected or error > 1e-5
    raise_on_all_ranks(group, f"{loss.item()} is not {expected}, or gradients are {error} away" if wrong else "")


@case(2)
def what_cannot_be_sliced_is_refused_by_name(group, rank):
    ids = torch.randint(3, 60, (1, TOKENS), generator=torch.Generator().manual_seed(1))
    for family, kind, said in (
        ("minimax", ValueError, r"compute it themselves \(MiniMaxLightningAttention\)"),
        ("recurrent_gemma", ValueError, "RecurrentGemmaRecurrentBlock"),
        ("zaya", ValueError, r"\(ZayaCCAProjection\)"),
        ("inkling_text", ValueError, r"biases of scores by distance \(InklingRelativeLogits\)"),
        ("qwen4_exp_text", ValueError, "layers of indexed_attention"),
    ):
        model = families.make(family, "flashmask")
        refused(kind, said, partial(shard, model, {"input_ids": ids}, group))
    model = tiny("qwen3_next", 2)
    rows = torch.from_numpy(masks.sliding_window(TOKENS, TOKENS, 9).to_startend_row_indices()[0])
    window = {"input_ids": ids, "startend_row_indices": rows}
    refused(
        ValueError,
        "column 1 is seen by row",
        lambda: shard(model, window, group, partition=random_partition(TOKENS, 2, tile=5)),
    )
    local = shard(model, {"input_ids": ids}, group, partition=random_partition(TOKENS, 2, tile=5))
    cache = families.make("qwen3_next", "flashmask").eval()(input_ids=ids[:, :4], use_cache=True)
    with_cache = {**local, "past_key_values": cache.past_key_values}
    refused(ValueError, "^a cache came to a model with layers that carry a state", lambda: model(**with_cache))
    made = {"input_ids": local["input_ids"], "max_new_tokens": 2, "sharding": local["sharding"]}
    refused(ValueError, "not used by the model: ..sharding", lambda: model.eval().generate(**made))  # Transformers' own
