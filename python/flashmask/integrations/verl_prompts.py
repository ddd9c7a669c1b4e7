# SPDX-License-Identifier: Apache-2.0
"""verl: an external library whose FSDP engine computes each prompt once.

    actor_rollout_ref.model.external_lib=flashmask.integrations.verl_prompts
    +actor_rollout_ref.model.override_config.attn_implementation=flashmask
    actor_rollout_ref.actor.use_prefix_grouper=true

The last line makes verl's trainer keep the answers to a prompt on one rank; without it, they are shared as far as they
meet. The packed sequence stands for verl's packed rows in its own code for log-probabilities and entropies, from logits
or from fused kernels.
"""

from __future__ import annotations

import itertools
import math
import warnings
from typing import Any

import torch
from torch import Tensor

import flashmask.transformers
from flashmask._arguments import boolean
from flashmask.data._prompts import packed_prompts, unpacked
from flashmask.integrations._host import Host
from flashmask.transformers._shared_prefix import (
    check_attention,
    check_dropout,
    check_layers,
    unit_of_bits,
    without_adapters,
)

_HOST = Host("verl", ("0.9",))
_HOST.check()
_ENGINES = "verl.workers.engine.fsdp.transformer_impl"
_Engine: Any = _HOST.part(_ENGINES, "FSDPEngineWithLMHead")
_REGISTRY: Any = _HOST.part("verl.workers.engine.base", "EngineRegistry")
_prepare_micro_batches: Any = _HOST.part(_ENGINES, "prepare_micro_batches")
_extract_multi_modal_inputs: Any = _HOST.part(_ENGINES, "extract_multi_modal_inputs")
_tu: Any = _HOST.part(_ENGINES, "tu")
_PACKED = "shared_prompts"  # in what prepare_model_inputs() hands to prepare_model_outputs()
_SETTINGS = ("temperature", "use_fused_kernels", "calculate_entropy", "calculate_sum_pi_squared", "pad_mode")


class SharedPromptFSDPEngine(_Engine):  # type: ignore[misc]
    """verl's FSDPEngineWithLMHead, in which the answers to a prompt stand behind one copy of it, as far as they meet.

    A micro-batch becomes one sequence; its log-probabilities and entropies are laid out as verl's, 0 in prompts. With
    use_dynamic_bsz groups are kept in one micro-batch where they fit; the budget counts a prompt for every answer.
    Batches without prompts, of supervised training, pass as in verl.

    invariant = True on this class gives attention of an answer the bits that it has behind its prompt alone, as
    flashmask.trl.share_prompts(invariant=True) does.

    Raises ValueError for images, Ulysses' sequence parallelism, use_remove_padding=False, distillation, models that
    cannot share a prefix, and dropout beside invariant.
    """

    invariant = False

    def _build_module(self) -> Any:
        module = super()._build_module()
        self._check(module)
        return module

    def _check(self, module: Any) -> None:
        if self.ulysses_sequence_parallel_size > 1:
            raise ValueError(
                f"ulysses_sequence_parallel_size is {self.ulysses_sequence_parallel_size}: verl cuts its rows for its "
                "ranks, not packed prompts; set it to 1, or train without shared prompts"
            )
        bare = without_adapters(module, "prompt")
        check_layers(bare, "prompt")
        check_attention(bare, "prompt")
        if boolean("invariant", self.invariant):
            check_dropout(bare)

    def forward_backward_batch(self, data: Any, loss_function: Any, forward_only: bool = False) -> Any:
        """Runs all micro-batches, as verl does, with groups that are kept together."""
        if "prompts" in data:
            _keep_groups(data, self.get_data_parallel_group())
        return super().forward_backward_batch(data, loss_function, forward_only)

    def prepare_model_inputs(self, micro_batch: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Returns what the model takes and what prepare_model_outputs() needs, for the packed sequence."""
        if "prompts" not in micro_batch:
            return super().prepare_model_inputs(micro_batch)  # type: ignore[no-any-return]
        _check_micro_batch(micro_batch)
        packed, rows = self._packed(micro_batch)
        whole = _whole(micro_batch, packed)
        # verl's labels are the tokens behind: a row that predicts one has it behind it in the packed sequence too.
        inputs, outputs = super().prepare_model_inputs(whole)
        if isinstance(micro_batch["temperature"], Tensor):
            length = packed["input_ids"].shape[1]
            outputs["temperature_rmpad"] = _temperatures(micro_batch["temperature"], rows, length)
        inputs["startend_row_indices"] = packed["startend_row_indices"]
        if self.invariant:
            inputs["invariant"] = True
        return inputs, {**outputs, _PACKED: (whole, rows)}

    def _packed(self, micro_batch: Any) -> tuple[dict[str, Tensor], Tensor]:
        """Packs a micro-batch; returns it and the packed row that predicts each token [B, L], -1 where none does."""
        ids = micro_batch["input_ids"]
        sizes = ids.offsets().diff()
        held = torch.arange(int(sizes.max()), device=ids.device) < sizes[:, None]
        padded = torch.nested.to_padded_tensor(ids, padding=0, output_size=held.shape)
        begins = _prompt_lengths(micro_batch).cpu().numpy()
        multiple = self.pad_to_length_bucket if self.pad_to_length else 1
        unit = unit_of_bits(without_adapters(self.module, "prompt"), ids.device) if self.invariant else 1
        return packed_prompts(padded, held, begins, unit=unit, pad_to_multiple_of=multiple)

    def prepare_model_outputs(
        self, output: Any, output_args: dict[str, Any], micro_batch: Any, logits_processor_func: Any
    ) -> dict[str, Tensor]:
        """Returns log-probabilities and entropies in the layout of micro_batch["input_ids"], of each next token."""
        if _PACKED not in output_args:
            return super().prepare_model_outputs(  # type: ignore[no-any-return]
                output, output_args, micro_batch, logits_processor_func
            )
        whole, rows = output_args[_PACKED]
        found = super().prepare_model_outputs(output, output_args, whole, logits_processor_func)
        offsets = micro_batch["input_ids"].offsets()
        held = torch.arange(rows.shape[1], device=rows.device) < offsets.diff()[:, None]
        positions = torch.nn.functional.pad(rows[:, 1:], (0, 1), value=-1)[held][None]

        def spread(each: Tensor) -> Tensor:
            return torch.nested.nested_tensor_from_jagged(unpacked(each.values()[None], positions)[0], offsets)

        return {name: spread(each) for name, each in found.items()}


def _check_micro_batch(micro_batch: Any) -> None:
    """Raises ValueError for what cannot be computed on a packed sequence."""
    given = _extract_multi_modal_inputs(micro_batch.get("multi_modal_inputs", []))
    if given or micro_batch["position_ids"].dim() == 3:
        raise ValueError(
            f"{next(iter(given), 'position_ids of several axes')} came with {len(micro_batch)} rows: prompts with "
            "images are not shared yet; train without shared prompts"
        )
    for name, wanted in (("use_remove_padding", True), ("distillation_use_topk", False), ("distillation_only", False)):
        found = _tu.get_non_tensor_data(data=micro_batch, key=name, default=wanted)
        if bool(found) is not wanted:
            raise ValueError(
                f"{name} is {found}: it reads verl's own rows, not packed prompts; set it to {wanted}, or train "
                "without shared prompts"
            )


def _prompt_lengths(batch: Any) -> Tensor:
    """Returns the tokens of each prompt, int64 [B]."""
    prompts = batch["prompts"]
    if prompts.is_nested:
        return prompts.offsets().diff()  # type: ignore[no-any-return]
    return batch["attention_mask"][:, : prompts.shape[1]].sum(1)  # type: ignore[no-any-return]


def _whole(micro_batch: Any, packed: dict[str, Tensor]) -> Any:
    """Returns a packed sequence as a micro-batch of one row, with the settings of `micro_batch`."""
    nested = {
        name: torch.nested.nested_tensor_from_jagged(each[0], torch.tensor([0, each.shape[1]], device=each.device))
        for name, each in packed.items()
        if name in ("input_ids", "position_ids")
    }
    temperature = micro_batch["temperature"]
    if isinstance(temperature, Tensor):
        nested["temperature"] = torch.ones(1, device=temperature.device)
    settings = {name: _tu.get_non_tensor_data(data=micro_batch, key=name, default=None) for name in _SETTINGS}
    given = {name: value for name, value in settings.items() if value is not None and name not in nested}
    return _tu.get_tensordict(nested, given)


def _temperatures(temperature: Tensor, rows: Tensor, length: int) -> Tensor:
    """Returns the temperature of each row of a packed sequence [length], given that of each answer [B]."""
    found = torch.ones(length, device=temperature.device)
    each = temperature.float()[:, None].expand(rows.shape)
    found[rows[rows >= 0]] = each[rows >= 0]
    return found


def _keep_groups(data: Any, group: Any) -> None:
    """Has verl keep the answers to a prompt in one micro-batch where they fit; warns where it cannot."""
    size = _group_size(data, group)
    if not _tu.get_non_tensor_data(data=data, key="use_dynamic_bsz", default=True):
        rows = data["micro_batch_size_per_gpu"]
        if rows % size:
            warnings.warn(
                f"a group of {size} answers is cut over micro-batches of {rows}, each of which computes its prompt; "
                "set ppo_micro_batch_size_per_gpu to a multiple of rollout.n",
                stacklevel=3,
            )
        return
    for part in (part for part in range(size, 1, -1) if size % part == 0):
        _tu.assign_non_tensor(data, force_group_size=part)
        try:  # verl raises it on all ranks or none
            _prepare_micro_batches(data=data, dp_group=group, same_micro_num_in_dp=True)
        except ValueError:
            continue
        return
    _tu.assign_non_tensor(data, force_group_size=1)


def _group_size(data: Any, group: Any) -> int:
    """Returns the largest size into which rows with equal prompts, one after another, can be cut on every rank."""
    lengths = _prompt_lengths(data).tolist()
    prompts = [tuple(ids[:size].tolist()) for ids, size in zip(data["input_ids"].unbind(), lengths, strict=True)]
    own = math.gcd(*(len(list(equal)) for _, equal in itertools.groupby(prompts)))
    found = [own] * torch.distributed.get_world_size(group)
    torch.distributed.all_gather_object(found, own, group)
    return math.gcd(*found)


_REGISTRY.register(model_type="language_model", backend=["fsdp", "fsdp2"], device="cuda", vendor="nvidia")(
    SharedPromptFSDPEngine
)
flashmask.transformers.register()
