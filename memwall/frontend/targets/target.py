"""TARGET, as a user writes it: ``model.py``, ``model.py:name``, ``package.module:name`` or ``hf:FOLDER``."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from memwall.core.errors import UsageError, nearest
from memwall.core.progress import tell
from memwall.frontend.program import Program, not_a_module
from memwall.frontend.targets.contract import Source, Workload, by_contract, by_name
from memwall.frontend.targets.expression import is_expression, workload_of_expression
from memwall.frontend.targets.loading import importable, load_file, load_module, start_triton
from memwall.frontend.targets.references import of_reference
from memwall.frontend.targets.sizes import check_mode, read_dims, read_sizes
from memwall.hardware.lookup import DEFAULT_GPU, Gpu, load_gpu

KINDS = (
    "model.py, model.py:name, package.module:name, hf:FOLDER_OR_CONFIG_JSON, an expression such as"
    " 'mm(bf16[512,512], bf16[512,512])', model.onnx, model.mlir, model.hlo or a saved profile (.json)"
)

#: suffix of a file that another program wrote → its kind
FORMATS = {
    ".onnx": "onnx",
    **dict.fromkeys((".mlir", ".mlirbc", ".stablehlo", ".jax"), "stablehlo"),
    **dict.fromkeys((".hlo", ".txt"), "hlo"),  # XLA's dumps are named .txt
}


class Parts(NamedTuple):
    """A target taken apart: ``kind`` is ``file``, ``module``, ``hf``, ``expression`` or one of :data:`FORMATS`;
    ``name`` is empty for the whole contract."""

    kind: str
    place: str
    name: str


def is_target(text: str) -> bool:
    """Whether a word on the command line reads as a target and not as the name of a GPU."""
    return (
        ":" in text
        or is_expression(text)
        or text.endswith((".py", ".json", ".json.gz", *FORMATS))
        or (("/" in text or "\\" in text) and not text.endswith(".toml"))
    )


def is_saved(target: str) -> bool:
    """Whether a target is a saved record."""
    return target.lower().endswith((".json", ".json.gz")) and not target.startswith("hf:")


def split_target(target: str) -> Parts:
    """Take a target apart without touching the disk."""
    if target.startswith("hf:"):
        return Parts("hf", target.removeprefix("hf:"), "")
    if is_expression(target):
        return Parts("expression", target, "")
    if target.endswith(".py"):
        return Parts("file", target, "")
    if kind := FORMATS.get(Path(target).suffix.lower()):
        return Parts(kind, target, "")
    place, colon, name = target.rpartition(":")
    if colon and place.endswith(".py"):
        return Parts("file", place, name)
    return Parts("module", place, name) if colon else Parts("module", target, "")


def resolve(target: str, **how: Any) -> Workload:
    """The workload that a target names, for what needs a torch module; arguments and errors as of :func:`named`.

    Raises:
        UsageError: it is another program.
    """
    found = named(target, **how)
    if isinstance(found, Program):
        raise not_a_module(found)
    return found


def named(
    target: str,
    *,
    input_specs: Sequence[str] = (),
    mode: str = "inference",
    gpu: Gpu | str | None = DEFAULT_GPU,
    dims: Mapping[str, int] | Sequence[str] = (),
    **given: Any,
) -> Workload | Program:
    """The workload or the program that a target names. Runs the user's file, but calls none of its functions except
    ``workload()``.

    ``given`` are some of :data:`memwall.frontend.targets.sizes.SIZES`, such as ``batch`` and ``seq``; they are passed
    to the file's functions that take them; ``input_specs`` are strings such as
    ``f32[8,3,224,224]`` and replace the file's inputs. In training ``hf:`` passes labels; in prefill and decode the
    inputs are of a step with a cache. While the file is loaded, ``torch.cuda`` answers as with ``gpu``, and what
    is put on CUDA stays on the host; None: as this machine does. ``dims`` are the symbolic sizes of an ONNX file.

    Raises:
        UsageError: there is no such target, it breaks the contract, or running it raised.
        MissingError: ``hf:`` without transformers.
    """
    tell(f"reading {target}")
    kind, place, name = split_target(target)
    if not place:
        raise UsageError(f"{target!r} names nothing; want {KINDS}")
    sizes = read_sizes(given)
    if kind == "expression":
        return _written_out(target, {**sizes, "input": input_specs, "dim": dims})
    if kind in FORMATS.values():
        return _program(kind, target, {**sizes, "input": input_specs} if input_specs else sizes, read_dims(dims))
    if dims and kind == "hf":
        raise UsageError(f"--dim gives the symbolic sizes of an ONNX file, which {target} is not")
    check_mode(mode, sizes)
    if mode == "decode" and input_specs:
        raise UsageError("--input makes no cache, which --mode decode reads; give a model file with decode_inputs()")
    if kind == "hf":
        from memwall.frontend.hf.workload import from_config

        _refuse_hub_id(place)
        return from_config(Path(place), target, mode=mode, sizes=sizes, input_specs=input_specs)
    return _of_code(Parts(kind, place, name), gpu, target, sizes, input_specs, mode, read_dims(dims))


def _of_code(parts: Parts, gpu: Gpu | str | None, *asked_of: Any) -> Workload | Program:
    """The workload or the program of a file or a module of Python; ``asked_of`` are fields of :class:`Source` from its
    target on."""
    kind, place, name = parts
    if kind == "file":
        _existing(Path(place))
    else:
        _check_module(place, name)
    import torch  # noqa: F401  before the user's file, so that the import is not run without .pyc

    from memwall.frontend.torch.process.cuda_answers import cuda_answers
    from memwall.frontend.torch.process.device import TracedDevice

    if kind == "file":
        start_triton(Path(place))

    def made() -> Workload | Program:
        source = Source(*_loaded(kind, place), *asked_of)
        return by_name(source, name) if name else of_reference(source) or by_contract(source)

    if gpu is None:
        return made()
    with cuda_answers(load_gpu(gpu)) as asked, TracedDevice("cpu", building=True):
        found = made()
    return found if isinstance(found, Program) else replace(found, asked=tuple(asked))


def _written_out(text: str, given: Mapping[str, Any]) -> Workload:
    """The workload of an expression, which says its sizes itself."""
    if name := next((name for name, value in given.items() if value), None):
        raise UsageError(f"--{name} has no effect on an expression: write the sizes into it, as in f32[8,1024]")
    return workload_of_expression(text)


def _program(kind: str, target: str, sizes: Mapping[str, Any], dims: Mapping[str, int]) -> Program:
    """The program of a file that another program wrote."""
    path = _existing(Path(target))
    if sizes:
        name = next(iter(sizes))
        raise UsageError(f"--{name} has no effect on {target}, whose inputs are in the file (ONNX: --dim NAME=N)")
    if kind == "onnx":
        from memwall.frontend.onnx import OnnxProgram

        return OnnxProgram(_title(path), target, path, dims)
    if dims:
        raise UsageError(f"--dim gives the symbolic sizes of an ONNX file, and {target} has none")
    if kind == "hlo":
        from memwall.frontend.hlo.program import HloProgram

        return HloProgram(_title(path), target, path)
    from memwall.frontend.stablehlo import StablehloProgram

    return StablehloProgram(_title(path), target, path)


def _loaded(kind: str, place: str) -> tuple[ModuleType, str, str]:
    """The module of a file or a package, where it is, and its name in reports: ``profiles/bert_large/model.py`` is
    bert_large, any other file has its own."""
    return load_module(place) if kind != "file" else load_file(Path(place)), place, title_of(place)


def title_of(target: str) -> str:
    """The name of a target in reports, without a look at its contents: ``hf:llama/config.json`` is llama,
    ``net.py:small`` is small, an expression itself."""
    kind, place, name = split_target(target)
    if name or kind in ("expression", "module"):
        return name or (target if kind == "expression" else place.rpartition(".")[2])
    path = Path(place).absolute()
    return path.parent.name if kind == "hf" and path.name == "config.json" else _title(path)


def _title(path: Path) -> str:
    """The name of a file in reports: of a file that is called model, the name of its folder."""
    return path.parent.name if path.stem == "model" and path.parent.name else path.stem


def _refuse_hub_id(place: str) -> None:
    """Say how to get the configuration of a model on huggingface.co: memwall downloads nothing."""
    if _HUB_ID.fullmatch(place) and not Path(place).exists():
        name = place.rpartition("/")[2]
        raise UsageError(
            f"no such folder: {place}; memwall downloads nothing, and needs the config.json of {place} alone: run"
            f" 'hf download {place} config.json --local-dir {name}' on a machine with a network, then name hf:{name}"
        )


#: owner/name on huggingface.co
_HUB_ID = re.compile(r"(?!.*\.json$)[A-Za-z0-9][\w.-]*/[\w.-]+")


def _existing(path: Path) -> Path:
    if path.is_file():
        return path
    if path.is_dir():
        raise UsageError(f"{path} is a folder; want {KINDS}")
    if path.is_symlink() or path.exists():
        what = "is not a regular file" if path.exists() else "is a link that leads nowhere"
        raise UsageError(f"{path} {what}; want {KINDS}")
    raise UsageError(f"no such file: {path}{_near(path)}")


def _near(path: Path) -> str:
    try:
        names = sorted(item.name for item in path.parent.glob("*.py"))
    except OSError:
        return ""
    near = nearest(path.name, names)
    return f"; did you mean {path.with_name(near[0])}?" if near else ""


def _check_module(place: str, name: str) -> None:
    """Report early, and better than an import could, what is wrong with a target that is not a file."""
    path = Path(place)
    if not name and path.is_dir():
        inside = path / "model.py"
        hint = f"; did you mean {inside}?" if inside.is_file() else f"; want {KINDS}"
        raise UsageError(f"{place} is a folder{hint}")
    if not name and path.is_file():
        raise UsageError(f"{place} is not a Python file (.py); want {KINDS}")
    if not all(part.isidentifier() for part in place.split(".")):
        raise UsageError(f"no such file: {place}; want {KINDS}")
    if name:
        return
    with importable(Path.cwd()):
        try:
            found = importlib.util.find_spec(place.partition(".")[0]) is not None
        except (ImportError, ValueError):
            found = False
    if not found:
        raise UsageError(f"no such file or module: {place}; want {KINDS}")
