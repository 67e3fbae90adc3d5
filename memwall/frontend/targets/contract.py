"""The file contract: which names of a Python file make a workload. First match wins.

1. ``ref_kernel(data)`` or ``reference(data)`` with ``generate_input(**sizes)`` (:mod:`.references`)
2. ``workload()`` returning :class:`memwall.Workload`; one that takes ``mode`` is told it
3. ``model()`` with ``inputs()``; ``model()`` may return a function of JAX or a module of flax, haiku or equinox
4. class ``Model`` with ``get_inputs()`` and optionally ``get_init_inputs()``
5. ``launch()``, which launches kernels, ``kernel[grid](...)``, on tensors that it makes or that ``inputs()`` returns

Each may have ``loss(output)`` and ``optimizer(parameters)`` next to it, and for a step with a cache
``prefill_inputs(batch, prompt)`` and ``decode_inputs(batch, context)``.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from memwall.core.errors import UsageError, nearest
from memwall.frontend.facts import ServingFacts
from memwall.frontend.program import Program
from memwall.frontend.targets.blame import blame
from memwall.frontend.targets.inputs import input_builder, parse_input
from memwall.frontend.targets.loading import at_home

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

    from memwall.frontend.hf.quantized import StoredWeights

    Inputs = tuple[Any, ...] | list[Any] | dict[str, Any]

SMALLEST = """\
import torch

def model():
    return torch.nn.Linear(1024, 1024)

def inputs(batch=8):
    return (torch.randn(batch, 1024),)
"""

_INPUT_NAMES = ("inputs", "get_inputs")
#: mode → names of the function that makes the inputs, where they are others
_INPUT_NAMES_OF = {"prefill": ("prefill_inputs", *_INPUT_NAMES), "decode": ("decode_inputs",)}


@dataclass(frozen=True)
class Workload:
    """What a step runs: a model, its inputs, its loss and its optimizer, each as it is or as a function that builds it.

    Functions are called by whoever traces or measures, under the device that it chose; nothing is built before.

    Attributes:
        model: a module, or a function without arguments that builds one.
        inputs: positional inputs (tuple or list), keyword inputs (dict), or a function that builds them.
        loss: output -> scalar tensor; ``None`` takes the output's ``.loss``, else the sum of its floating tensors.
        optimizer: parameters -> optimizer, or a name such as ``"adamw"``; ``None`` stops after backward.
        name: a short name for reports.
        target: what the user wrote to name it.
        asked: what its file asked of ``torch.cuda`` while it was loaded that depends on the GPU.
        notes: lines that every page of its profile states: what was left out, or is counted as something else; or
            functions of the traced module that return one, or nothing.
        advance: for a step that follows another: the output and the inputs (keywords) of a first call, which is no
            part of the step → the inputs of the step, a cache of keys and values among them.
        most_tokens: of a sequence, where the model says.
        context: tokens of each sample in the cache before the step, where that is known.
        encoder: tokens that an encoder of text reads in the step of a prompt, 0 of an encoder of anything else; None
            without one.
        fronts: what encoders in front of the model read that no step of a server has: images, sounds.
        guesses: tokens that modules of its own guess (MTP), as its configuration says; the traced module lacks them.
        samples: of a step, where the inputs are made to a batch that is known; None takes their first axis.
        stored: how its configuration says that weights are stored, which the traced module does not show; None where
            nothing does.
    """

    model: nn.Module | Callable[..., nn.Module]
    inputs: Inputs | Callable[..., Inputs]
    loss: Callable[[Any], Tensor] | None = None
    optimizer: Callable[[Any], Optimizer] | str | None = "adamw"
    name: str = "model"
    target: str = ""
    asked: tuple[str, ...] = ()
    notes: tuple[str | Callable[[Any], str], ...] = ()
    advance: Callable[[Any, dict[str, Any]], Inputs] | None = None
    most_tokens: int | None = None
    context: int | None = None
    encoder: int | None = None
    fronts: tuple[str, ...] = ()
    guesses: int = 0
    samples: int | None = None
    stored: Callable[[], StoredWeights] | None = None

    @property
    def serving(self) -> ServingFacts | None:
        """What is said that a server needs and the traced graph does not show; None where nothing is."""
        said = ServingFacts(
            most_tokens=self.most_tokens or None,
            context=self.context or 0,
            guesses=self.guesses,
            encoder=self.encoder,
            fronts=self.fronts,
        )
        if self.stored is not None:
            try:
                how = self.stored()
                said = replace(
                    said, weights=how.scheme, kept=how.listed, cache=how.cache, mixed=how.mixed, experts=how.experts
                )
            except UsageError as error:
                said = replace(said, refused=str(error))
        return None if said == ServingFacts() else said


@dataclass(frozen=True)
class Source:
    """A loaded file or module with what the user asked of it."""

    module: ModuleType
    shown: str
    name: str
    target: str
    sizes: Mapping[str, Any]
    input_specs: Sequence[str] = ()
    mode: str = "inference"
    #: arguments of ``generate_input()``
    dims: Mapping[str, int] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        """The folder of the file; the current one for a module without a file."""
        file = getattr(self.module, "__file__", None)
        return Path(file).resolve().parent if file else Path.cwd()

    def get(self, name: str) -> Any:
        return getattr(self.module, name, None)

    def optional(self, name: str) -> Any:
        """A module-level function of the contract, or None; a name bound to something else is refused."""
        found = self.get(name)
        if found is None or inspect.ismodule(found):
            return None
        if not callable(found):
            raise UsageError(f"{self.shown}: {name} is {_kind(found)}, not a function")
        return at_home(found, self.folder)


def by_contract(source: Source) -> Workload | Program:
    """The workload of a file or module, by its names, or its program where ``model()`` makes another than a PyTorch
    module; a UsageError that shows the smallest file that would work."""
    module_class = source.get("Model")
    _refuse_dims(source)
    if callable(source.get("workload")):
        return _from_workload(source, source.get("workload"))
    if callable(source.get("model")):
        return _assemble(source, source.get("model"))
    if inspect.isclass(module_class):
        return _assemble(source, module_class)
    if callable(source.get("launch")):
        return _launching(source, source.get("launch"))
    raise UsageError(
        f"{source.shown} has neither workload(), nor model() with inputs(), nor a class Model with get_inputs(), nor"
        " ref_kernel() with generate_input(); "
        f"name one as {source.shown}:NAME with --input 'f32[8,1024]', or write, at least:\n\n" + SMALLEST
    )


def by_name(source: Source, name: str) -> Workload | Program:
    """The workload made of one class, function, module or Workload of a file; a UsageError where the name belongs to
    something else, or to nothing."""
    _refuse_dims(source)
    found: Any = source.module
    for part in name.split("."):
        found = getattr(found, part, None)
    if isinstance(found, Workload):
        return _override(source, found)
    if _returns_workload(found, name):
        return _from_workload(source, found)
    if inspect.isfunction(found) and name.startswith("launch"):
        return _launching(replace(source, name=name), found)
    if callable(found):
        return _assemble(replace(source, name=name), found)
    if found is not None:
        raise UsageError(
            f"{source.shown}:{name} is {_kind(found)}; want a class, a function that builds a module, or a module"
        )
    raise UsageError(f"{source.shown} has no {name!r}{_offer(source.module, name)}")


def _assemble(source: Source, maker: Any) -> Workload | Program:
    """A workload of a model maker and the inputs, loss and optimizer next to it."""
    from torch import nn

    takers: dict[str, set[str]] = {}
    samples = None
    if not isinstance(maker, nn.Module) and uses_jax(source.module):
        made = _of_jax(source, maker, takers)
        if not isinstance(made, nn.Module):
            return _jax_program(source, made, takers)
    model = maker if isinstance(maker, nn.Module) else _model_builder(source, maker, takers)
    if source.input_specs:
        inputs: Any = input_builder(source.input_specs)
    else:
        names = _INPUT_NAMES_OF.get(source.mode, _INPUT_NAMES)
        function = next((source.get(n) for n in names if callable(source.get(n))), None)
        if function is None and source.mode == "decode":
            raise UsageError(
                f"{source.shown} has no decode_inputs(); add 'def decode_inputs(batch=1, context=1024)', which returns "
                "what forward is given for one more token: the token and the cache with the keys and values of context "
                "tokens"
            )
        if function is None:
            raise UsageError(
                f"{source.shown} has {maker_name(maker)} but no inputs(); add one, as in "
                "'def inputs(batch=8): return (torch.randn(batch, 1024),)', or give --input 'f32[8,1024]'"
            )
        named = _named_for(function, source.sizes)
        inputs = at_home(_with_sizes(function, named, takers), source.folder)
        samples = _batch_of(function, source.sizes, takers)
        takers[maker_name(function)] |= source.sizes.keys() - named.keys()
    _refuse_untaken(source, takers)
    loss, optimizer = source.optional("loss"), source.optional("optimizer") or "adamw"
    context = source.sizes.get("context")
    return Workload(model, inputs, loss, optimizer, source.name, source.target, context=context, samples=samples)


def _launching(source: Source, launch: Callable[..., Any]) -> Workload | Program:
    """A workload of a function that launches kernels; its sizes are its own where nothing else makes its tensors."""
    from memwall.frontend.targets.launching import Launching

    if source.input_specs or any(callable(source.get(name)) for name in _INPUT_NAMES):
        return _assemble(source, Launching(at_home(launch, source.folder)))
    takers: dict[str, set[str]] = {}
    call = at_home(_with_sizes(launch, source.sizes, takers), source.folder)
    _refuse_untaken(source, takers)
    return Workload(Launching(call), (), name=source.name, target=source.target)


#: packages of JAX programs
_JAX = frozenset(("jax", "jaxlib", "flax", "haiku", "equinox", "optax"))


def uses_jax(module: ModuleType) -> bool:
    """Whether a file or module imports JAX or a library of its modules, by what stands in it."""
    return "jax" in sys.modules and any(
        (getattr(thing, "__name__", "") if inspect.ismodule(thing) else getattr(thing, "__module__", None) or "")
        .partition(".")[0] in _JAX
        for name, thing in list(vars(module).items())
        if not name.startswith("__")
    )  # fmt: skip


def is_of_jax(model: Any, inputs: Any) -> bool:
    """Whether a model that is given in Python, with its inputs, is a program of JAX: by the kind of either, where that
    is numpy's too unless PyTorch's is among them."""
    if "jax" not in sys.modules:
        return False
    given = (model, *sys.modules["jax"].tree_util.tree_leaves(inputs))
    kinds = {base.__module__.partition(".")[0] for each in given for base in type(each).__mro__}
    return not _JAX.isdisjoint(kinds) or ("numpy" in kinds and "torch" not in kinds)


def _of_jax(source: Source, maker: Any, takers: dict[str, set[str]]) -> Any:
    """What a maker of a file with JAX makes; the function itself where it takes arguments, or is made already."""
    if not inspect.isfunction(maker) or (source.name != "model" and required(maker)):
        return maker
    build = _model_builder(source, maker, takers)
    try:
        return build()
    except (Exception, SystemExit) as error:
        raise blame(error, f"calling {maker_name(maker)} of {source.shown}") from error


def _jax_program(source: Source, model: Any, takers: dict[str, set[str]]) -> Program:
    """The program of a function or module of JAX, and the inputs, loss and optimizer next to it."""
    from memwall.frontend.jax.targets import inputs_of, program_of

    samples = None
    if source.input_specs:
        inputs: Any = inputs_of([parse_input(text) for text in source.input_specs])
    else:
        function = next((source.get(n) for n in _INPUT_NAMES if callable(source.get(n))), None)
        if function is None:
            raise UsageError(
                f"{source.shown} has a JAX function but no inputs(); add one, as in 'def inputs(batch=8): return"
                " (jax.ShapeDtypeStruct((batch, 1024), jnp.float32),)', or give --input 'f32[8,1024]'"
            )
        call = at_home(_with_sizes(function, source.sizes, takers), source.folder)
        samples = _batch_of(function, source.sizes, takers)
        try:
            inputs = call()
        except (Exception, SystemExit) as error:
            raise blame(error, f"calling {maker_name(function)} of {source.shown}") from error
        if inputs is None:
            raise UsageError(f"{maker_name(function)} of {source.shown} returned None, not the arguments of the model")
    _refuse_untaken(source, takers)
    own = source.get("loss")  # a file may call its function so
    loss = None if own is not None and own in (model, getattr(model, "__wrapped__", None)) else source.optional("loss")
    said = {"loss": loss, "optimizer": source.optional("optimizer") or "adamw"}
    return program_of(model, inputs, name=source.name, target=source.target, samples=samples, **said)


def _model_builder(source: Source, maker: Any, takers: dict[str, set[str]]) -> Callable[[], Any]:
    init_inputs = source.get("get_init_inputs") if inspect.isclass(maker) else None
    if callable(init_inputs) and (maker is source.get("Model") or required(maker)):

        def build() -> Any:
            arguments = init_inputs()
            return maker(**arguments) if isinstance(arguments, dict) else maker(*arguments)

        return at_home(build, source.folder)
    missing = required(maker)
    if missing:
        way_out = "give them defaults" + (" or add get_init_inputs()" if inspect.isclass(maker) else "")
        raise UsageError(f"{source.shown}: {maker_name(maker)} needs {', '.join(missing)}; {way_out}")
    return at_home(_with_sizes(maker, source.sizes, takers), source.folder)


def _from_workload(source: Source, function: Callable[..., Any]) -> Workload:
    """Call ``workload()``, the one function of the contract that runs while resolving."""
    takers: dict[str, set[str]] = {}
    mode = {"mode": source.mode} if "mode" in parameters_of(function) else {}
    call = at_home(_with_sizes(function, {**source.sizes, **mode}, takers), source.folder)
    _refuse_untaken(source, takers)
    try:
        made = call()
    except (Exception, SystemExit) as error:
        raise blame(error, f"calling {maker_name(function)} of {source.shown}") from error
    if not isinstance(made, Workload):
        raise UsageError(f"{source.shown}: {maker_name(function)} returned {_kind(made)}, not a memwall.Workload")
    return _override(source, replace(made, samples=made.samples or _batch_of(function, source.sizes, takers)))


def _refuse_dims(source: Source) -> None:
    if source.dims:
        raise UsageError(
            "--dim gives the sizes of an ONNX file or the arguments of generate_input(), and"
            f" {source.shown} has neither"
        )


def _override(source: Source, workload: Workload) -> Workload:
    name = source.name if workload.name == "model" else workload.name
    inputs = input_builder(source.input_specs) if source.input_specs else workload.inputs
    context = source.sizes.get("context", workload.context)
    samples = None if source.input_specs else workload.samples
    return replace(workload, name=name, target=source.target, inputs=inputs, context=context, samples=samples)


def _with_sizes(function: Any, sizes: Mapping[str, Any], takers: dict[str, set[str]]) -> Callable[[], Any]:
    """The function with batch and seq bound where it takes them; notes in ``takers`` which function takes which."""
    takes = takers.setdefault(maker_name(function), set())
    parameters = parameters_of(function)
    anything = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    takes.update(name for name in sizes if anything or name in parameters)
    bound = {name: sizes[name] for name in sizes if name in takes}

    def call() -> Any:
        return function(**bound)

    call.__name__ = getattr(function, "__name__", "call")
    return call


def _batch_of(function: Any, sizes: Mapping[str, Any], takers: Mapping[str, set[str]]) -> int | None:
    """The batch that a function makes its inputs to: the user's where it takes that, else its default."""
    default = getattr(parameters_of(function).get("batch"), "default", None)
    batch = sizes["batch"] if "batch" in sizes and "batch" in takers[maker_name(function)] else default
    return batch if type(batch) is int and batch > 0 else None


def _named_for(function: Any, sizes: Mapping[str, Any]) -> Mapping[str, Any]:
    """The sizes as a function names them: the length of a prompt is the ``seq`` of inputs() that know no prompt."""
    if "prompt" in sizes and {"prompt", "seq"} & parameters_of(function).keys() == {"seq"}:
        return {"seq" if name == "prompt" else name: size for name, size in sizes.items()}
    return sizes


def _refuse_untaken(source: Source, takers: Mapping[str, set[str]]) -> None:
    for size, value in source.sizes.items():
        if any(size in taken for taken in takers.values()):
            continue
        if source.input_specs:
            raise UsageError(f"--{size} has no effect with --input: write the size into the input's shape")
        function = list(takers)[-1]
        raise UsageError(
            f"--{size} {value} was given, but {function} of {source.shown} takes no {size!r}; "
            f"add it, as in 'def {function.removesuffix('()')}({size}={value})'"
        )


def required(function: Any) -> list[str]:
    """The parameters of a function that have no default."""
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [n for n, p in parameters_of(function).items() if p.default is p.empty and p.kind not in optional]


def parameters_of(function: Any) -> Mapping[str, inspect.Parameter]:
    """What a function takes, by name; empty where it has no signature."""
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):  # a builtin without a signature
        return {}


def _returns_workload(thing: Any, name: str) -> bool:
    if not inspect.isfunction(thing):
        return False
    hint = thing.__annotations__.get("return")
    return hint is Workload or (isinstance(hint, str) and hint.rpartition(".")[2] == "Workload") or name == "workload"


def maker_name(maker: Any) -> str:
    """How a message names a maker: ``class Model`` or ``inputs()``."""
    name = getattr(maker, "__name__", type(maker).__name__)
    return f"class {name}" if inspect.isclass(maker) else f"{name}()"


def _kind(thing: Any) -> str:
    return "None" if thing is None else f"of type {type(thing).__name__}"


def _offer(module: ModuleType, name: str) -> str:
    own = [
        n
        for n, thing in vars(module).items()
        if not n.startswith("_") and callable(thing) and getattr(thing, "__module__", None) == module.__name__
    ]
    near = nearest(name, own, 3, 0.5)
    if near:
        return f"; did you mean {', '.join(near)}?"
    return f"; it has {', '.join(own[:8])}" if own else ""
