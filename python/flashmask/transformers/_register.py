# SPDX-License-Identifier: Apache-2.0
"""Registers a name in both registries of Transformers."""

from __future__ import annotations

import transformers
from transformers import AttentionInterface, AttentionMaskInterface, modeling_utils
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

from flashmask._arguments import boolean, choice
from flashmask._backends import BY_NAME, Backend, cudnn_of
from flashmask._plans.plan import VISITS
from flashmask.transformers._attention import attention_function
from flashmask.transformers._mask import flashmask_mask
from flashmask.transformers._name import TESTED, keep


def register(
    name: str = "flashmask", *, visit: str = "active", backend: Backend = None, invariant: bool = False
) -> None:
    """Makes attn_implementation=name mean FlashMask, for attention and for masks; calling it again changes nothing.

    Transformers has no entry points for attention, so a program must call this once before it makes a model. From then
    on other implementations ("sdpa", "eager" and so on) refuse startend_row_indices, which they would ignore.
    visit="all" also computes tiles without visible scores, as attention under a dense mask does, and returns the same
    bits: give it another name to compare with. backend="cudnn" computes by NVIDIA's kernels, as flashmask.attention()
    does; not with visit="all". invariant=True gives every document the bits that it has alone, in every call, as the
    argument of a model's call does in one. Raises ValueError if the name belongs to another attention implementation,
    and ImportError for Transformers before 5.5, which describes masks in another way.
    """
    _check_version()
    if not isinstance(name, str) or not name or "/" in name or "|" in name:
        raise ValueError(f"name is {name!r}; expected a word, without the / and | that Transformers gives a meaning")
    choice("visit", visit, VISITS)
    if cudnn_of(backend) == BY_NAME and visit == "all":
        raise ValueError('backend="cudnn" came beside visit="all", which is of our kernels; pass one of them')
    attention = attention_function(visit, backend, boolean("invariant", invariant))
    held = {
        "attention": (modeling_utils.ALL_ATTENTION_FUNCTIONS.get(name), attention),
        "mask": (ALL_MASK_ATTENTION_FUNCTIONS.get(name), flashmask_mask),
    }
    for registry, (found, ours) in held.items():
        if found is not None and found is not ours:
            raise ValueError(f"name {name!r} belongs to {found!r} in the {registry} registry; expected a free name")
    keep(name)
    AttentionInterface.register(name, attention)
    AttentionMaskInterface.register(name, flashmask_mask)


def _check_version() -> None:
    found = transformers.__version__
    if _version(found) < _version(TESTED[0]):
        raise ImportError(f"Transformers {found} is installed; flashmask.transformers needs {TESTED[0]} or newer")


def _version(said: str) -> tuple[int, ...]:
    return tuple(int(part) for part in said.split(".")[:2])
