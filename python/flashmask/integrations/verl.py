# SPDX-License-Identifier: Apache-2.0
"""verl: attention over its batches of shared prompts, which hold each prompt once in front of all of its responses.

    actor_rollout_ref.model.external_lib=flashmask.integrations.verl
    +actor_rollout_ref.model.override_config.attn_implementation=flashmask_prefix_grouper

verl makes such batches with the package prefix_grouper and hands a PrefixGrouper to the model. Its own attentions copy
the prompt's keys and values for every response and compute twice; this one computes once, in place, under the mask
masks.shared_question(). Without a PrefixGrouper it is the attention "flashmask".
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface

from flashmask import Mask, masks
from flashmask.integrations._host import Host
from flashmask.transformers import flashmask_attention_forward, flashmask_mask, register
from flashmask.transformers._name import keep

NAME = "flashmask_prefix_grouper"
Host("verl", ("0.9",)).check()
_MADE: WeakKeyDictionary[Any, Tensor] = WeakKeyDictionary()


def prefix_grouper_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    prefix_grouper: Any = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Computes the attention of one layer; Transformers calls this, users do not.

    Shapes and keywords are those of flashmask_attention_forward(). With a `prefix_grouper` attention_mask and
    position_ids, which say no more than it does, are not read.
    """
    if prefix_grouper is None:
        return flashmask_attention_forward(module, query, key, value, attention_mask, **others)
    if others.get("sliding_window") is not None:
        raise ValueError(
            f"sliding_window={others['sliding_window']} came beside a PrefixGrouper: the rows that see a token of a "
            "prompt would not be one range; turn off use_prefix_grouper"
        )
    others |= {"position_ids": None, "is_causal": True}
    return flashmask_attention_forward(module, query, key, value, row_indices(prefix_grouper, query.device), **others)


def row_indices(prefix_grouper: Any, device: torch.device | str) -> Tensor:
    """Returns the mask of a batch as startend_row_indices, int32 [rows of the batch, 1, tokens, 1]; made once."""
    made = _MADE.get(prefix_grouper)
    if made is None or made.device != torch.device(device):
        made = _MADE[prefix_grouper] = torch.from_numpy(_mask(prefix_grouper).to_startend_row_indices()[0]).to(device)
    return made


def _mask(prefix_grouper: Any) -> Mask:
    held = prefix_grouper.padding_mask
    if (held[:, 1:] > held[:, :-1]).any():
        raise ValueError(
            "the PrefixGrouper pads in front of its prompts; expected padding_mode='right', as verl has it"
        )
    lengths = [(each.prefix_len, each.suffix_lens) for each in prefix_grouper.group_info]
    return masks.stack_batch([masks.shared_question([each], held.shape[1]) for each in lengths])


register()
keep(NAME)
AttentionInterface.register(NAME, prefix_grouper_attention)
AttentionMaskInterface.register(NAME, flashmask_mask)
