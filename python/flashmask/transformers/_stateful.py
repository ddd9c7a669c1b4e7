# SPDX-License-Identifier: Apache-2.0
"""Hybrid models: finds where their states begin, end and fork, and tells each layer, or refuses what would leak."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from flashmask import Mask, RowIndices
from flashmask._nodes import Nodes, nodes
from flashmask._rows import one_name_of
from flashmask._torch.shared import shared
from flashmask.distributed import Sharding
from flashmask.transformers._calls import said_around
from flashmask.transformers._indices import Indices
from flashmask.transformers._layer_mask import Call, layer_mask
from flashmask.transformers._ours import is_ours
from flashmask.transformers._running import Running
from flashmask.transformers._states import carriers, refuse_cache_over_ranks, refuse_past, serve, served_names
from flashmask.transformers._tables import makers_in

_NODES = "flashmask_nodes"  # keyword by which a model hands them to its layers
#: Classes of layers that carry something from token to token, by their names.
_CARRIES = re.compile(
    r"Mamba|Delta(Net|Attention|Rule)|ShortConv|Lightning|Rglru|RecurrentBlock|LinearAttention|RetNet|RWKV|xLSTM"
)
_CONVOLUTION = "causal_conv1d_fn"
_FIRST_MAMBA = "mamba_selective_scan"  # takes no state to begin from
_REGISTRY = "ALL_ATTENTION_FUNCTIONS"  # what attention itself looks up
#: Layers that hand nothing but a mask on to what carries a state, and that mask's keyword: it takes the nodes along.
_HANDS_ON_A_MASK_ALONE = {"JambaMambaDecoderLayer": "attention_mask", "InklingDecoderLayer": "conv_mask"}
#: Models that hand nothing but such a mask on to their layers.
_MODELS_OF_A_MASK_ALONE = {"MambaModel": "attention_mask", "FalconMambaModel": "attention_mask"}
#: Folders of models parts of which mix tokens without any mask, by themselves.
_MIXING = {
    "longt5": "its encoder attends to blocks of tokens by itself",
    "mobilebert": "its embeddings join those of neighbouring tokens",
    "pegasus_x": "its encoder attends to blocks of tokens by itself",
    "sam3_lite_text": "its convolutions join neighbouring tokens",
}
_BESIDE_STATES = "flashmask_beside_states"  # attribute of modules that are served: whether layers beside carry a state
_DOCUMENTS = "seq_idx"  # keyword that numbers the document of each token, of what keeps them apart itself
_SEVERAL = "several documents, or sequences with a shared prefix,"
_ALONE = "give it one document per batch entry, padded"


class _Told(NamedTuple):
    """What a model tells its layers."""

    nodes: Nodes | Sharding | None
    """The nodes of the batch, or the sharding of its tokens; None where each entry is one sequence."""
    positions: Tensor | None
    """The batch's position_ids, for models that do not hand them on to attention."""
    shape: tuple[int, ...] | None
    """Batch and length of the tokens that it is about."""


_texts: Running[_Told] = Running()


def serve_states(model: torch.nn.Module) -> None:
    """Makes the layers of a model that carry a state keep to its masks; calling it again changes nothing."""
    for each in model.modules():
        vars(each).setdefault(_BESIDE_STATES, False)
    for text in model.modules():
        layers = _layers_of(text)
        if layers is None or _NODES in vars(text):
            continue
        found = [each for each in layers.modules() if _carries(each)]
        if not found:
            continue
        for each in layers.modules():
            vars(each)[_BESIDE_STATES] = True
        modules = sorted({type(each).__module__ for each in found})
        for module in modules:
            serve(sys.modules[module])
        vars(text)[_NODES] = _names_of(each for each in map(type, found) if not _is_served(each)), modules
        text.register_forward_pre_hook(_find_nodes, with_kwargs=True)
        text.register_forward_hook(_end, always_call=True)
        for layer in layers:
            layer.register_forward_pre_hook(_hand_on, with_kwargs=True)
        for carrier in found:  # not on their layers, whose hooks do not run where a checkpoint computes them again
            carrier.register_forward_pre_hook(_enter, with_kwargs=True)
            carrier.register_forward_hook(_leave, always_call=True)
    for each in model.modules():
        if hasattr(each, "post_init") and _NODES not in vars(each) and (_reads_no_mask(each) or _mixing(each)):
            vars(each)[_NODES] = type(each).__name__, []
            each.register_forward_pre_hook(_refuse_documents, with_kwargs=True)


def _layers_of(text: torch.nn.Module) -> torch.nn.ModuleList | None:
    """Returns the layers of a model of text."""
    layers = getattr(text, "layers", None)
    parameters = inspect.signature(type(text).forward).parameters
    takes_text = "attention_mask" in parameters and ("position_ids" in parameters or "input_ids" in parameters)
    return layers if isinstance(layers, torch.nn.ModuleList) and takes_text else None


def _reads_no_mask(model: torch.nn.Module) -> bool:
    """Whether a model takes tokens, and neither attends by Transformers' registry nor has layers that are served."""
    parts = [each for each in model.modules() if each is not model]
    takes_tokens = "input_ids" in inspect.signature(type(model).forward).parameters
    return (
        takes_tokens
        and bool(parts)
        and not any(_NODES in vars(each) for each in model.modules())
        and not any(_REGISTRY in vars(sys.modules.get(type(each).__module__, model)) for each in model.modules())
    )


def _mixing(model: torch.nn.Module) -> str:
    """Returns what of a model mixes tokens beside attention under a mask, and keeps no documents apart."""
    folder = type(model).__module__.rpartition(".")[0].rpartition(".")[2]
    return _MIXING.get(folder, "")


def carriers_of(model: torch.nn.Module) -> set[type[torch.nn.Module]]:
    """Returns the classes of a model's layers that carry a state; empty for attention alone."""
    lists = [getattr(each, "layers", None) for each in model.modules()]
    return {
        _class_of(each)
        for found in lists
        if isinstance(found, torch.nn.ModuleList)
        for each in found.modules()
        if _carries(each)
    }


def _class_of(module: torch.nn.Module) -> type[torch.nn.Module]:
    """Returns the class that a module was made with: FSDP2 derives one of its own from it."""
    return next(each for each in type(module).__mro__ if not each.__module__.startswith("torch.distributed."))


def refuse_over_ranks(model: torch.nn.Module) -> None:
    """Raises for layers that cannot compute what a rank's tokens need of others."""
    makers = makers_in(model)
    if makers:
        raise ValueError(
            f"{type(model).__name__} has biases of scores by distance ({_names_of(makers)}), which flashmask does not "
            "serve with tokens spread over ranks; train it on one device"
        )
    refused = {each for each in carriers_of(model) if not _is_served(each) or _tells_documents_apart(each)}
    if refused:
        raise ValueError(
            f"{type(model).__name__} has layers that carry a state and compute it themselves ({_names_of(refused)}), "
            "where flashmask cannot give ranks the tokens or heads that they need; train it on one device, or spread "
            "batches rather than sequences over the ranks"
        )
    for each in model.modules():
        if hasattr(each, "post_init") and (_reads_no_mask(each) or _mixing(each)):
            why = _mixing(each) or "none of its layers reads a mask"
            raise ValueError(f"{type(each).__name__} cannot have its tokens spread over ranks: {why}")


def why_no_forks(model: torch.nn.Module) -> str:
    """Returns the names of classes that a shared prefix cannot pass through; empty if there are none.

    These are layers whose state cannot fork, and biases by the distance of rows, which is not that of positions there.
    """
    return _names_of(
        {each for each in carriers_of(model) if not _is_served(each) or _FIRST_MAMBA in _names_in(each.forward)}
        | makers_in(model)
    )


def _names_of(classes: Iterable[type[torch.nn.Module]]) -> str:
    return ", ".join(sorted({each.__name__ for each in classes}))


def _carries(module: torch.nn.Module) -> bool:
    """Whether a module itself computes something from the tokens before, other than attention."""
    if any(isinstance(each, torch.nn.Conv1d) and each.groups > 1 for each in module.children()):
        return True
    if not _is_named_so(type(module)) or _REGISTRY in _names_in(type(module).forward):
        return False
    # A decoder layer may be named for what it holds; then what it holds carries the state.
    return not any(_is_named_so(type(each)) for each in module.children())


def _is_named_so(kind: type[torch.nn.Module]) -> bool:
    return bool(_CARRIES.search(kind.__name__)) and "Norm" not in kind.__name__


def _is_served(carrier: type[torch.nn.Module]) -> bool:
    """Whether a class computes its state by wrapped functions: by a rule or a scan, or as a convolution alone."""
    reached = served_names(sys.modules[carrier.__module__]) & _names_in(carrier.forward)
    of_functions = bool(reached - {_CONVOLUTION}) or (_CONVOLUTION in reached and "Conv" in carrier.__name__)
    return of_functions or _tells_documents_apart(carrier)


def _tells_documents_apart(carrier: type[torch.nn.Module]) -> bool:
    """Whether a class computes its state by itself, and keeps documents apart where it is told of them."""
    return carrier.__name__.endswith("DynamicShortConvolution") and _DOCUMENTS in _constants_in(carrier.forward)


def _constants_in(function: Any) -> tuple[Any, ...]:
    constants: tuple[Any, ...] = inspect.unwrap(function).__code__.co_consts
    return constants


def _documents_of(nodes: Nodes, hidden: Tensor | None) -> Tensor:
    """Returns int64 (batch, length), the number of each token's document; -1 for padding."""
    assert hidden is not None
    assert nodes.depth <= 1, "a layer that knows documents only"

    def make() -> Tensor:
        numbers = torch.full((nodes.tokens,), -1)
        for number, (begin, end) in enumerate(zip(nodes.begins.tolist(), nodes.ends.tolist(), strict=True)):
            numbers[begin:end] = number
        return numbers.view(len(hidden), -1).to(hidden.device)

    return nodes.kept((_DOCUMENTS, hidden.device, len(hidden)), make)


def _names_in(function: Any) -> set[str]:
    """Returns the names that a function looks up."""
    return set(inspect.unwrap(function).__code__.co_names)


def _find_nodes(
    text: torch.nn.Module, arguments: tuple[Any, ...], options: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Hands the nodes of a batch to the layers, as a keyword that the model passes on, or with a mask that it does."""
    _texts.enter(text, _Told(None, None, None))
    if not _is_of_ours(text):
        return None
    given = _Given(text, arguments, options)
    told = _tell(text, given)
    changes = _without_cache(told)
    mask = _MODELS_OF_A_MASK_ALONE.get(_class_of(text).__name__)
    if mask is None:
        return given.changed({**changes, _NODES: told}) if changes else (arguments, {**options, _NODES: told})
    if told.nodes is None or given.tokens is None:
        return None
    return given.changed({**changes, mask: _marked(given[mask], given.tokens, told)})


def _without_cache(told: _Told) -> dict[str, Any]:
    """Returns the keyword that keeps a model from making a cache where its tokens are spread over ranks."""
    return {"use_cache": False} if isinstance(told.nodes, Sharding) else {}


def _is_of_ours(model: torch.nn.Module) -> bool:
    return is_ours(getattr(getattr(model, "config", None), "_attn_implementation", None))


def _refuse_documents(model: torch.nn.Module, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
    if _is_of_ours(model) and _nodes_of(_Given(model, arguments, options)) is not None:
        why = _mixing(model) or "none of its layers reads a mask"
        raise ValueError(f"{_SEVERAL} came to {type(model).__name__}, which would mix them: {why}; {_ALONE}")


def with_nodes(text: torch.nn.Module, options: dict[str, Any]) -> dict[str, Any]:
    """Returns keywords for the forward of a model that runs, for who puts another batch in place of its own."""
    if _NODES not in vars(text):
        return options
    told = _tell(text, _Given(text, (), options))
    return {**options, **_without_cache(told), _NODES: told}


def _tell(text: torch.nn.Module, given: _Given) -> _Told:
    """Finds what a model tells its layers; raises where they would leak."""
    if given["sharding"] is not None:
        return _tell_sharding(text, given["sharding"], given)
    found = _nodes_of(given)
    refused, modules = vars(text)[_NODES]
    if found is not None:
        _serve_again(modules)
    if found is not None and refused:
        raise ValueError(
            f"{_SEVERAL} came to {type(text).__name__}, and flashmask does not reach its layers that carry a state "
            f"({refused}), which would carry on from one to the next; {_ALONE}"
        )
    makers = makers_in(text) if found is not None and found.depth > 1 else ()
    if makers:
        raise ValueError(
            f"a mask in which sequences share a prefix came to {type(text).__name__}, whose bias of scores "
            f"({_names_of(makers)}) counts rows between a query and a key, among them those of other answers; repeat "
            "the prefix instead, or pack whole documents"
        )
    positions = given["position_ids"] if found is not None and given["cu_seq_lens_q"] is None else None
    told = _Told(found, positions, None if given.tokens is None else tuple(given.tokens.shape[:2]))
    _texts.enter(text, told)
    return told


def _serve_again(modules: list[str]) -> None:
    """Wraps the functions of modules: the model may have been pickled by another process."""
    for module in modules:
        serve(sys.modules[module])


def _tell_sharding(text: torch.nn.Module, sharding: Sharding, given: _Given) -> _Told:
    """Finds what a model tells its layers where tokens are spread over ranks."""
    refuse_over_ranks(text)
    if given["cache"] is not None or given["past_key_values"] is not None:
        refuse_cache_over_ranks()
    _serve_again(vars(text)[_NODES][1])
    told = _Told(sharding, None, None if given.tokens is None else tuple(given.tokens.shape[:2]))
    _texts.enter(text, told)
    return told


def _end(text: torch.nn.Module, *_: Any) -> None:
    """Forgets the batch when the model has run, or failed."""
    _texts.leave(text)


class _Given:
    """The arguments of a model's forward, and what the calls around it say of the mask where it takes no such thing."""

    def __init__(self, text: torch.nn.Module, arguments: tuple[Any, ...], options: Mapping[str, Any]) -> None:
        names = [name for name in inspect.signature(type(text).forward).parameters if name != "self"]
        around = {name: value for name, value in said_around().items() if name not in names}
        self._handed = {**dict(zip(names, arguments, strict=False)), **options}
        self._options = {**around, **self._handed}

    def __getitem__(self, name: str) -> Any:
        return self._options.get(name)

    def changed(self, changes: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Returns the arguments with others in their places."""
        return (), {**self._handed, **changes}

    @property
    def tokens(self) -> Tensor | None:
        """The input_ids or the embeddings: (batch, length, ...)."""
        found: Tensor | None = self["input_ids"] if self["input_ids"] is not None else self["inputs_embeds"]
        return found

    @property
    def has_past(self) -> bool:
        """Whether a cache holds tokens, or states behind some; one of states alone does not say how many."""
        cache = self["cache"] if self["cache"] is not None else self["past_key_values"]
        layers = [getattr(each, "has_previous_state", None) for each in getattr(cache, "layers", ())]
        states = [each for each in layers if isinstance(each, dict)]
        if states:
            return any(any(each.values()) for each in states)
        return hasattr(cache, "get_seq_length") and int(cache.get_seq_length()) > 0


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _nodes_of(given: _Given) -> Nodes | None:
    """Returns the nodes of a batch; None where each entry is one sequence, whose padding layers find themselves."""
    tokens = given.tokens
    if tokens is None or tokens.shape[1] == 1:
        return None
    rows = one_name_of(given["startend_row_indices"], given["attn_mask_startend_row_indices"])
    positions, mask, lengths = given["position_ids"], given["attention_mask"], given["cu_seq_lens_q"]
    of_keys = isinstance(mask, Tensor) and mask.ndim == 2
    if rows is None and lengths is None and positions is None and (mask is None or of_keys):
        return None
    call = Call(
        batch=tokens.shape[0],
        rows=tokens.shape[1],
        columns=tokens.shape[1],
        device=tokens.device,
        causal=True,
        window=None,
        attention_mask=mask[:, -tokens.shape[1] :] if of_keys else mask,
        row_indices=rows,
        position_ids=positions if positions is None or positions.ndim == 2 else positions[0],
        cu_seq_lens_q=lengths,
        cu_seq_lens_k=given["cu_seq_lens_k"],
    )
    found = _several(call)
    if found is not None and given.has_past:
        refuse_past()
    return found


def _several(call: Call) -> Nodes | None:
    """Returns the nodes of a call's mask; None where each batch entry is one sequence."""
    found = layer_mask(call)
    if isinstance(found, Indices):
        held = shared(_from_indices, (found.vectors,), causal=found.causal)
    else:
        held = nodes(found if isinstance(found, Mask) else _from_booleans(found))
    entries = held.tokens // call.rows
    plain = held.depth <= 1 and len(held) <= entries
    return None if plain else held.repeated(call.batch // entries)  # one mask may be for all entries of the batch


@torch.compiler.disable  # type: ignore[untyped-decorator]
def refuse_untold(layer: torch.nn.Module, call: Call) -> None:
    """Raises for several documents in attention beside layers that carry a state, which nobody told of them."""
    if call.causal and call.rows == call.columns > 1 and _several(call) is not None:
        raise ValueError(
            f"{_SEVERAL} came to {type(layer).__name__} of a model with layers that carry a state, which would carry "
            "on from one to the next: flashmask tells these where the model itself is called, rather than its forward"
        )


def is_untold(layer: torch.nn.Module, options: Mapping[str, Any]) -> bool:
    """Whether a layer of attention stands beside layers that carry a state, and was called by none that told them."""
    if options.get(_NODES) is not None:
        return False
    beside = getattr(layer, _BESIDE_STATES, None)
    return bool(_defines_carriers(type(layer).__module__) if beside is None else beside)


@torch._dynamo.assume_constant_result  # type: ignore[untyped-decorator]
@cache
def _defines_carriers(module: str) -> bool:
    """Whether a model's module has classes of layers that carry a state, by their names and their convolutions."""
    classes = [each for each in vars(sys.modules[module]).values() if isinstance(each, type)]
    return any(
        _is_named_so(each)
        or any(isinstance(names, tuple) and "groups" in names for names in _constants_in(each.__init__))
        for each in classes
        if issubclass(each, torch.nn.Module) and each.__module__ == module
    )


def _from_indices(vectors: Tensor, *, causal: bool) -> Nodes:
    return nodes(RowIndices(vectors, causal))


def _from_booleans(visible: Tensor) -> Mask:
    from flashmask.masks import from_dense

    return from_dense(visible.cpu().numpy())


def _hand_on(
    layer: torch.nn.Module, arguments: tuple[Any, ...], options: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Adds to what a layer is called with: the batch's position_ids, for its attention, and a mask with the nodes."""
    told: _Told | None = options.get(_NODES)
    if told is None or told.nodes is None:
        return None
    added = dict(options)
    if told.positions is not None and added.get("position_ids") is None:
        added["position_ids"] = told.positions
    name = _HANDS_ON_A_MASK_ALONE.get(_class_of(layer).__name__)
    if name is not None:
        added[name] = _marked(added.get(name), arguments[0], told)
    return arguments, added


def _marked(mask: Tensor | None, tokens: Tensor, told: _Told) -> Tensor:
    """Returns a mask of padding (batch, length) that takes along what a model tells its layers."""
    mask = tokens.new_ones(tokens.shape[:2], dtype=torch.bool) if mask is None else mask.clone()
    setattr(mask, _NODES, told)
    return mask


def _enter(
    carrier: torch.nn.Module, arguments: tuple[Any, ...], options: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Takes the nodes out of a module's keywords, for the functions that carry its state on."""
    told: _Told | None = options.get(_NODES)
    for mask in ("attention_mask", "conv_mask"):
        told = told or getattr(options.get(mask), _NODES, None)
    if told is None:
        if _texts.told is not None and _texts.told.nodes is not None:
            raise ValueError(
                f"{_SEVERAL} came to a model whose layers do not tell {type(carrier).__name__}, which would carry on "
                f"from one to the next; {_ALONE}"
            )
        return None
    hidden = arguments[0] if arguments else options.get("hidden_states")
    if hidden is not None and told.shape is not None and tuple(hidden.shape[:2]) != told.shape:
        raise RuntimeError(
            f"{type(carrier).__name__} got {list(hidden.shape[:2])} tokens, and the model was called with "
            f"{list(told.shape)}: somebody replaced the model's forward, and flashmask does not know the mask"
        )
    carriers.enter(carrier, told.nodes)
    options = {name: value for name, value in options.items() if name != _NODES}
    if isinstance(told.nodes, Nodes) and _tells_documents_apart(_class_of(carrier)):
        options[_DOCUMENTS] = _documents_of(told.nodes, hidden)
    return arguments, options


def _leave(carrier: torch.nn.Module, *_: Any) -> None:
    carriers.leave(carrier)
