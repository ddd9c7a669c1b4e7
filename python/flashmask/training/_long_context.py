# SPDX-License-Identifier: Apache-2.0
"""Lets models of Transformers train on long sequences."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from flashmask._arguments import boolean, integer
from flashmask.training._families import check_untouched, family_of, layer_parts
from flashmask.training._host_memory import HostMemory
from flashmask.training._layer import Kept, LayerRun, OnDevice, run_layer
from flashmask.training._loss import head_memory, linear_cross_entropy
from flashmask.training._memory import StepMemory, sizes_of, step_memory
from flashmask.training._offload import Offload
from flashmask.training._rows import in_chunks


class _Again:
    """An input that is computed again, by running the layer before."""

    def __init__(self, before: LayerRun) -> None:
        self._before = before

    def take(self) -> Tensor:
        return self._before.again()


class LongContext:
    """The handle of a model under long_context(); close(), or leaving the `with` block, restores the model."""

    def __init__(self, model: Any, *, chunk: int, keep: int, offload: int, hold_attention: bool, compile: bool) -> None:
        from flashmask.transformers._name import CACHE

        self._cache_names = CACHE
        self.model, self.chunk, self.keep, self.offload = model, chunk, keep, offload
        self.hold_attention = hold_attention
        self._compile = functools.cache(functools.partial(torch.compile, dynamic=False)) if compile else None
        self.decoder, self._causal = _parts_of(model)
        self.layers: list[Any] = list(self.decoder.layers)
        _refuse_states(self.decoder)
        for layer in self.layers:
            family_of(layer)
            check_untouched(layer)
        device = next(self.layers[0].parameters()).device
        self.host_memory = HostMemory(page_locked=device.type == "cuda")
        self._copies = Offload(self.host_memory)
        self._last: tuple[weakref.ref[Tensor], LayerRun] | None = None
        self._undo: list[Callable[[], None]] = []
        self._attach()

    def close(self) -> None:
        """Restores the model's own forward and frees the page-locked memory; a second call does nothing."""
        while self._undo:
            self._undo.pop()()
        self._last = None
        self.host_memory.close()

    def memory(self, tokens: int, *, batch: int = 1) -> StepMemory:
        """Predicts what a forward and backward of `batch` sequences of `tokens` tokens take beyond what is allocated.

        Weights are allocated already. Gradients that do not exist yet are counted; what the optimizer adds in its first
        step is not.
        """
        integer("tokens", tokens, minimum=1)
        integer("batch", batch, minimum=1)
        weights = [each for each in self.model.parameters() if each.requires_grad]
        taken = step_memory(
            sizes_of(self.layers[0], self.decoder),
            layers=len(self.layers),
            tokens=batch * tokens,
            chunk=batch * min(self.chunk, tokens),
            keep=self.keep,
            offload=self.offload,
            held=self.hold_attention,
            head=head_memory(self._causal.lm_head.weight, batch * tokens) if self._causal is not None else 0,
        )
        gradients = sum(each.numel() * each.element_size() for each in weights if each.grad is None)
        return StepMemory(taken.card + gradients, max(0, taken.host - self.host_memory.bytes))

    def require_memory(self, tokens: int, *, batch: int = 1) -> StepMemory:
        """Returns memory() if that much is free; else raises MemoryError, which says what is missing and where."""
        taken = self.memory(tokens, batch=batch)
        taken.require(next(self.layers[0].parameters()).device)
        return taken

    def __enter__(self) -> LongContext:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _attach(self) -> None:
        for number, layer in enumerate(self.layers):
            self._replace(layer, functools.partial(self._forward, number, layer))
        if self._causal is not None:
            self._replace(self._causal, functools.partial(self._forward_with_loss, self._causal))
        self._replace(self.decoder.norm, functools.partial(self._forward_of_norm, self.decoder.norm))
        config = self.decoder.config
        used = config.use_cache
        config.use_cache = False
        self._undo.append(lambda: setattr(config, "use_cache", used))

    def _replace(self, module: nn.Module, forward: Callable[..., Any]) -> None:
        replaced = _Replaced(module, forward)
        self._undo.append(replaced.undo)

    def _forward(
        self,
        number: int,
        layer: Any,
        own: Callable[..., Any],
        hidden_states: Tensor,
        *,
        position_embeddings: tuple[Tensor, Tensor],
        attention_mask: Any = None,
        **keywords: Any,
    ) -> Tensor:
        """Replaces the forward of a layer."""
        given = {"position_embeddings": position_embeddings, "attention_mask": attention_mask, **keywords}
        for name in self._cache_names:
            if given.get(name) is None:
                given.pop(name, None)
                continue
            if torch.is_grad_enabled():
                raise ValueError(f"{name} came to a layer that trains; call the model with use_cache=False")
            cached: Tensor = own(hidden_states, **given)
            return cached
        run = LayerRun(layer_parts(layer, compile=self._compile, **given), self.chunk, None, self.hold_attention)
        if not torch.is_grad_enabled():
            return run_layer(run, hidden_states)
        run.kept = self._kept(number, hidden_states)
        run.ahead = self._copies.fetch_next
        out = run_layer(run, hidden_states)
        self._last = None if number + 1 == len(self.layers) else (weakref.ref(out), run)
        return out

    def _kept(self, number: int, hidden: Tensor) -> Kept:
        if number % self.keep and self._last is not None and _is_same(self._last[0](), hidden):
            return _Again(self._last[1])
        if number // self.keep < self.offload and number + self.keep < len(self.layers):
            return self._copies.keep(hidden.detach())
        return OnDevice(hidden.detach())

    def _forward_of_norm(self, norm: nn.Module, own: Callable[[Tensor], Tensor], hidden: Tensor) -> Tensor:
        """Replaces the forward of the norm after the layers."""
        return in_chunks(own, hidden, [each for each in norm.parameters() if each.requires_grad], chunk=self.chunk)

    def _forward_with_loss(
        self,
        model: Any,
        own: Callable[..., Any],
        *arguments: Any,
        labels: Tensor | None = None,
        shift_labels: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        logits_to_keep: int | Tensor = 0,
        **keywords: Any,
    ) -> Any:
        """Replaces the forward of a causal language model: with labels, it returns the loss and no logits."""
        from transformers.modeling_outputs import CausalLMOutputWithPast

        if shift_labels is None and labels is not None:
            shift_labels = shifted(labels)
        if shift_labels is None:
            return own(*arguments, logits_to_keep=logits_to_keep, **keywords)
        if keywords.pop("return_dict", None) is False:
            raise ValueError("return_dict is False; a model under long_context() returns its loss by name")
        output = self.decoder(*arguments, **keywords)
        hidden = output.last_hidden_state
        loss = linear_cross_entropy(
            hidden,
            model.lm_head.weight,
            shift_labels,
            bias=model.lm_head.bias,
            softcap=getattr(self.decoder.config, "final_logit_softcapping", None),
            reduction="mean" if num_items_in_batch is None else "sum",
        )
        if num_items_in_batch is not None:
            loss = loss / num_items_in_batch
        return CausalLMOutputWithPast(loss=loss, hidden_states=output.hidden_states)


class _Replaced:
    """A forward in place of a module's own, which is passed to it as first argument."""

    def __init__(self, module: Any, forward: Callable[..., Any]) -> None:
        self._module, self._own, self._forward = module, module.forward, forward
        self._before = vars(module).get("forward")
        self._undone = False
        functools.update_wrapper(self, self._own)
        module.forward = self

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        if self._undone:
            return self._own(*arguments, **keywords)
        return self._forward(self._own, *arguments, **keywords)

    def __deepcopy__(self, _: Any) -> Any:
        raise RuntimeError(
            "a copy of a model under long_context() would run the layers of the model it is a copy of; copy it before, "
            "or after close()"
        )

    def undo(self) -> None:
        """Restores the own forward; a wrapper put around this one since, such as Accelerate's, stays and calls it."""
        self._undone = True
        if self._module.forward is not self:
            return
        if self._before is None:
            del self._module.forward
        else:
            self._module.forward = self._before


def _is_same(one: Tensor | None, other: Tensor) -> bool:
    """Whether two tensors are the same memory, unmodified in between; wrappers may have made a new object."""
    if one is None:
        return False
    return (one.data_ptr(), one.shape, one._version) == (other.data_ptr(), other.shape, other._version)


def shifted(labels: Tensor) -> Tensor:
    """Returns what each row is to predict: the label of the next row; nothing (-100) for the last."""
    return torch.nn.functional.pad(labels, (0, 1), value=-100)[..., 1:]


def _refuse_states(decoder: nn.Module) -> None:
    from flashmask.transformers._stateful import carriers_of

    carriers = ", ".join(sorted(each.__name__ for each in carriers_of(decoder)))
    if carriers:
        raise ValueError(
            f"{type(decoder).__name__} has layers that carry a state ({carriers}), which long_context() does not run "
            "in chunks; use model.gradient_checkpointing_enable(), and for more tokens than one GPU holds "
            "flashmask.transformers.shard()"
        )


def _parts_of(model: Any) -> tuple[Any, Any]:
    """Returns the decoder, and the causal language model around it or None."""
    if hasattr(model, "get_base_model"):
        model = model.get_base_model()
    decoder = model.base_model if hasattr(model, "base_model") else model
    if not isinstance(getattr(decoder, "layers", None), nn.ModuleList):
        raise ValueError(
            f"{type(model).__name__} has no list of decoder layers that is understood; expected a Llama, Mistral, "
            "Qwen2, Qwen3 or Gemma 3 of Transformers, with or without PEFT's LoRA"
        )
    head = getattr(model, "lm_head", None)
    if head is None:
        return decoder, None
    if type(head) is not nn.Linear:
        raise ValueError(
            f"lm_head of {type(model).__name__} is a {type(head).__name__}; the loss in chunks needs a "
            "torch.nn.Linear: leave lm_head out of the adapters"
        )
    from transformers.loss.loss_utils import ForCausalLMLoss

    if model.loss_function is not ForCausalLMLoss:
        raise ValueError(
            f"{type(model).__name__} has a loss_function of its own, which would not be asked; use "
            "linear_cross_entropy() on model.base_model(...).last_hidden_state, and long_context(model.base_model)"
        )
    return decoder, model


def long_context(
    model: Any,
    *,
    chunk: int = 8192,
    keep: int = 1,
    offload: bool | int = False,
    hold_attention: bool = False,
    compile: bool = False,
) -> LongContext:
    """Lets a model of Transformers train on long sequences; the model stays the same object, with the same parameters.

    model: a Llama, Mistral, Qwen2, Qwen3 or Gemma 3, with any head, with or without PEFT's LoRA. Each of its decoder
    layers then runs all but attention on `chunk` tokens at a time, keeps only its input from the forward, and computes
    the rest again in the backward. Called with labels, a causal language model returns its loss and no logits. Losses
    and gradients are those of the unchanged model, up to the rounding of sums over tokens.

    keep: every keep-th layer keeps its input, 1: all; the others get theirs by running the layers before them again.
    offload: how many of the kept inputs wait in host memory, from the first layer on; True: all but the last, which is
    needed at once.
    hold_attention: also keeps attention's result, which takes as much memory again, so that none is computed twice.
    compile: torch.compile fuses the steps between products; the first step then takes a minute longer.

    Returns a handle, also a context manager, whose close() restores the model. Raises ValueError, naming the layers,
    for a model whose layers are not supported.
    """
    integer("chunk", chunk, minimum=1)
    integer("keep", keep, minimum=1)
    count = (1 << 31 if offload else 0) if isinstance(offload, bool) else integer("offload", offload, minimum=0)
    boolean("hold_attention", hold_attention)
    boolean("compile", compile)
    return LongContext(model, chunk=chunk, keep=keep, offload=count, hold_attention=hold_attention, compile=compile)
