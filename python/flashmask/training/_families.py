# SPDX-License-Identifier: Apache-2.0
"""Decoder layers of Transformers, cut before and after attention, the only step in which tokens meet.

A layer is recognised by the class whose forward() it runs, and its parts do what that forward() does, with the layer's
own modules, so adapters and other replacements of those keep working.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor, nn

from flashmask.training._layer import Heads, LayerParts


def _before(layer: Any, hidden: Tensor, cos: Tensor, sin: Tensor) -> Heads:
    attention = layer.self_attn
    normed = layer.input_layernorm(hidden)
    shape = (*hidden.shape[:-1], -1, attention.head_dim)
    q, k, v = (each(normed).view(shape) for each in (attention.q_proj, attention.k_proj, attention.v_proj))
    if hasattr(attention, "q_norm"):
        q, k = attention.q_norm(q), attention.k_norm(k)
    rotate = sys.modules[type(attention).__module__].apply_rotary_pos_emb
    q, k = rotate(q.transpose(1, 2), k.transpose(1, 2), cos, sin)
    return q.transpose(1, 2), k.transpose(1, 2), v


def _after(layer: Any, hidden: Tensor, o: Tensor) -> Tensor:
    hidden = hidden + layer.self_attn.o_proj(o.flatten(-2))
    behind: Tensor = layer.mlp(layer.post_attention_layernorm(hidden))
    return hidden + behind


def _after_with_norms_behind(layer: Any, hidden: Tensor, o: Tensor) -> Tensor:
    hidden = hidden + layer.post_attention_layernorm(layer.self_attn.o_proj(o.flatten(-2)))
    behind: Tensor = layer.post_feedforward_layernorm(layer.mlp(layer.pre_feedforward_layernorm(hidden)))
    return hidden + behind


class _Family(NamedTuple):
    """A family of decoder layers: the part after attention, and the keyword that gives attention its window."""

    after: Callable[[Any, Tensor, Tensor], Tensor]
    window: Callable[[Any], dict[str, Any]]


def _no_window(_: Any) -> dict[str, Any]:
    return {}


def _window_of_model(attention: Any) -> dict[str, Any]:
    return {"sliding_window": getattr(attention.config, "sliding_window", None)}


def _window_of_layer(attention: Any) -> dict[str, Any]:
    return {"sliding_window": attention.sliding_window}


_FAMILIES = {
    "llama.modeling_llama.Llama": _Family(_after, _no_window),
    "mistral.modeling_mistral.Mistral": _Family(_after, _window_of_model),
    "qwen2.modeling_qwen2.Qwen2": _Family(_after, _window_of_layer),
    "qwen3.modeling_qwen3.Qwen3": _Family(_after, _window_of_layer),
    "gemma3.modeling_gemma3.Gemma3": _Family(_after_with_norms_behind, _window_of_layer),
}
_KNOWN = "Llama, Mistral, Qwen2, Qwen3 and Gemma 3"


def _defined_by(module: nn.Module) -> str:
    """Returns the name of the class that defines a module's forward(), without its wrappers."""
    forward = inspect.unwrap(type(module).forward)
    return f"{forward.__module__}.{forward.__qualname__.removesuffix('.forward')}"


def family_of(layer: Any) -> _Family:
    """Returns the family of a layer; raises ValueError for a layer that is not supported."""
    found = _defined_by(layer)
    for name, family in _FAMILIES.items():
        prefix = f"transformers.models.{name}"
        if found == f"{prefix}DecoderLayer":
            if _defined_by(layer.self_attn) != f"{prefix}Attention":
                found = _defined_by(layer.self_attn)
                break
            return family
    raise ValueError(
        f"layers of class {found} are not understood; flashmask.training runs those of {_KNOWN} in chunks, as "
        "Transformers defines them, and any other through flashmask.training.chunked_layer"
    )


def check_untouched(layer: Any) -> None:
    """Raises ValueError for a layer that family_of() knows, but whose forward() was replaced."""
    for name, module in (("layer", layer), ("self_attn", layer.self_attn)):
        if "forward" in vars(module):
            raise ValueError(
                f"the forward of a {name} ({type(module).__name__}) was replaced, by Accelerate's hooks, a second "
                "long_context() or the like; flashmask.training would leave out what it does: hand over the model as "
                "Transformers made it"
            )


def layer_parts(
    layer: Any,
    *,
    position_embeddings: tuple[Tensor, Tensor],
    attention_mask: Any = None,
    compile: Callable[[Any], Any] | None = None,
    **keywords: Any,
) -> LayerParts:
    """Returns the parts of one call of a decoder layer of Transformers: Llama, Mistral, Qwen2, Qwen3 or Gemma 3.

    Arguments are those that the model passes to its layer; keywords go to its attention function. compile: wraps the
    functions before and after attention. Raises ValueError for a layer of another class, and for dropout of attention
    probabilities.
    """
    family, attention = family_of(layer), layer.self_attn
    if layer.training and attention.attention_dropout:
        raise ValueError(
            f"attention_dropout is {attention.attention_dropout}: a backward that computes attention again would drop "
            "others; set attention_dropout of the model's configuration to 0"
        )
    cos, sin = position_embeddings
    if cos.ndim != 3 or sin.ndim != 3:
        raise ValueError(
            f"position_embeddings are {list(cos.shape)} and {list(sin.shape)}; expected [1 or B, S, head dim], which "
            "models make of position_ids [1 or B, S]"
        )
    keywords = {**family.window(attention), **keywords}
    compiled = compile or (lambda function: function)
    before, after = compiled(_before), compiled(family.after)

    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        eager = sys.modules[type(attention).__module__].eager_attention_forward
        interface = ALL_ATTENTION_FUNCTIONS.get_interface(attention.config._attn_implementation, eager)
        heads = (each.transpose(1, 2) for each in (q, k, v))
        o: Tensor = interface(attention, *heads, attention_mask, dropout=0.0, scaling=attention.scaling, **keywords)[0]
        return o

    projections = (attention.q_proj, attention.k_proj, attention.v_proj)
    return LayerParts(
        before=lambda hidden, span: before(layer, hidden, cos[:, span], sin[:, span]),
        attend=attend,
        after=partial(after, layer),
        parameters=[each for each in layer.parameters() if each.requires_grad],
        linear_before=() if hasattr(attention, "q_norm") else projections,
        linear_after=(layer.mlp.down_proj,) if family.after is _after else (),
        adapted=[each for each in layer.modules() if hasattr(each, "lora_A")],
        random=layer.training and any(_drops(each) for each in layer.modules()),
    )


def _drops(module: nn.Module) -> bool:
    return isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0 and module.training
