# SPDX-License-Identifier: Apache-2.0
"""FlashMask in Hugging Face Transformers: attn_implementation="flashmask".

    import flashmask.transformers

    flashmask.transformers.register()
    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="flashmask")

docs/transformers.md says where a layer's mask comes from, what falls back and what is refused.
"""

from flashmask.transformers._attention import flashmask_attention_forward
from flashmask.transformers._mask import flashmask_mask
from flashmask.transformers._register import register
from flashmask.transformers._shard import shard
from flashmask.transformers._trainer import ShardedBatches

__all__ = ["ShardedBatches", "flashmask_attention_forward", "flashmask_mask", "register", "shard"]
