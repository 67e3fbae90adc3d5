"""Finding a GPU by its name: ``hardware_specs`` holds one TOML file per GPU, named after it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import cast

from memwall.core import graph, packed
from memwall.core.cache import remembered
from memwall.core.errors import UsageError, nearest
from memwall.core.packed import pack, unpack
from memwall.core.structure import shown
from memwall.hardware.chips import GENERATIONS, chip_of, halves_tensor_cores
from memwall.hardware.files import packaged
from memwall.hardware.gpu import Gpu
from memwall.hardware.gpu_spec import broken_identities, read_spec

__all__ = [
    "Gpu", "all_gpus", "gpu_names", "identity_violations", "load_gpu", "load_gpus", "match_device",
    "match_hardware", "nearest_hardware", "read_spec",
    "spec_path", "stated", "with_nearest_constants",
]  # fmt: skip

#: What is modeled where nothing is asked for and this machine has no GPU.
DEFAULT_GPU = "h100-sxm"


def load_gpu(name_or_path: str | Path | Gpu) -> Gpu:
    """The GPU of that name, or of that TOML file.

    Args:
        name_or_path: a name, of which case and punctuation do not matter and any words that fit only one GPU suffice;
            the path of a TOML file; or a GPU, which comes back as it is.

    Raises:
        UsageError: no GPU or several GPUs have that name, or the file is wrong; suggests similar names.
    """
    if isinstance(name_or_path, Gpu):
        return name_or_path
    if isinstance(name_or_path, Path) or name_or_path.lower().endswith(".toml"):
        return _inherited(read_spec(name_or_path))
    if name_or_path in _files():
        return _packaged(name_or_path)
    found = match_device(name_or_path)
    if found is not None:
        return found
    if "/" in name_or_path or "\\" in name_or_path:
        return _inherited(read_spec(name_or_path))
    return _packaged(_only(name_or_path, _fitting(name_or_path)))


def load_gpus(names: Iterable[str | Path | Gpu]) -> list[Gpu]:
    """Several GPUs, each once; refuses two different ones of one name."""
    found: dict[str, Gpu] = {}
    for gpu in map(load_gpu, names):
        if found.setdefault(gpu.name, gpu) != gpu:
            raise UsageError(f"two different GPUs are named {gpu.name!r}: change the name in your TOML file")
    return list(found.values())


def match_device(name: str) -> Gpu | None:
    """The GPU that a driver reports under this name, or None: a MIG slice is not its GPU."""
    found = _exact().get(_squeezed(name))
    return _packaged(found) if found else None


#: a device has as much memory as a GPU if they differ by less than this: drivers reserve more or less of it
_MEMORY_TOLERANCE = 0.02


def match_hardware(vendor: str, sm_count: int | None, dram_bytes: int | None) -> Gpu | None:
    """The GPU of a vendor with so many multiprocessors and so much memory; None where none has, or several of other
    rates. Of several that differ in their links alone (the H100 and the H800) it is the one that came first."""
    found = [
        gpu
        for gpu in all_gpus()
        if gpu.vendor == vendor
        and gpu.sm_count == sm_count
        and (dram_bytes is None or abs(dram_bytes / gpu.dram_bytes - 1) < _MEMORY_TOLERANCE)
    ]
    rates = {(gpu.dram_bytes_per_s, max(gpu.peak_flop_per_s.values())) for gpu in found}
    return found[0] if len(rates) == 1 else None


def nearest_hardware(vendor: str, compute_capability: str, sm_count: int | None) -> Gpu | None:
    """The GPU of a vendor that is most like a device: of its compute capability if one is, and among these of the
    nearest number of multiprocessors. None where nothing of the device is known."""
    own = [gpu for gpu in all_gpus() if gpu.vendor == vendor]
    alike = [gpu for gpu in own if gpu.compute_capability == compute_capability] or own
    if not alike or sm_count is None:
        return None
    return min(alike, key=lambda gpu: abs(math.log(max(gpu.sm_count, 1) / max(sm_count, 1))))


def gpu_names() -> tuple[str, ...]:
    """Canonical names of all GPUs, by vendor, then release."""
    return tuple(_stored())


@cache
def all_gpus() -> tuple[Gpu, ...]:
    """All GPUs, by vendor, then release."""
    return tuple(map(_packaged, _stored()))


@cache
def _stored() -> Mapping[str, tuple[list[str], str]]:
    """Name of a GPU → the names that it goes by, and the GPU packed: a command needs few of them."""
    names, *gpus = remembered("gpus", _sources(), _packed)
    return {own[0]: (own, text) for own, text in zip(json.loads(names), gpus, strict=True)}


def _packed() -> list[str]:
    gpus = [*map(_inherited, stated())]
    return [json.dumps([(gpu.name, gpu.full_name, *gpu.aliases) for gpu in gpus]), *map(pack, gpus)]


def spec_path(name: str) -> Path:
    """The file of a GPU, by canonical name."""
    return _files()[name]


def identity_violations(name_or_path: str | Path) -> list[str]:
    """Inconsistencies of a spec, one line each, except what ``[identity]`` explains."""
    is_name = isinstance(name_or_path, str) and name_or_path in _files()
    return broken_identities(_files()[str(name_or_path)] if is_name else Path(name_or_path))


@cache
def _files() -> Mapping[str, Path]:
    return packaged("hardware_specs")


def _sources() -> list[Path]:
    """What the packaged GPUs follow from: their files, and the modules that read them and that their types are in."""
    return [
        *_files().values(),
        *sorted(Path(__file__).parent.glob("*.py")),
        Path(graph.__file__),
        Path(packed.__file__),
    ]


@cache
def _packaged(name: str) -> Gpu:
    return cast(Gpu, unpack(_stored()[name][1]))


#: the distance from which two GPUs are unrelated: other vendors'
_UNRELATED = len(GENERATIONS)
#: generations added to the distance of a GPU whose tensor cores multiply by other instructions, so that all with the
#: same ones come first, and of a board that halves their rate where the other does not
_OTHER_PRODUCTS, _OTHER_RATE = 4.0, 0.25
#: generations added to the distance of a table that was not scored on rows (derived, of another dtype, from published
#: figures): within an architecture, and across
_UNSCORED = (0.5, 1.5)


def _inherited(gpu: Gpu) -> Gpu:
    return gpu if gpu.cpu is not None else with_nearest_constants(gpu, stated())


@cache
def stated() -> tuple[Gpu, ...]:
    """All GPUs with the constants that their own files state, by vendor, then release."""
    return tuple(sorted(map(read_spec, _files().values()), key=lambda gpu: (gpu.vendor, gpu.release, gpu.name)))


def with_nearest_constants(gpu: Gpu, others: Iterable[Gpu]) -> Gpu:
    """The GPU with each constant that it lacks from the most similar of ``others`` that states it: one of the same
    compute capability, else one whose tensor cores multiply by the same instructions (Ampere, Ada and the RTX boards of
    Blackwell; Hopper; Blackwell's others), of these of the same architecture, else of the nearest generation of the
    same vendor; among these of the nearest peak. A table that was not scored on rows counts as further away
    (:data:`_UNSCORED`), and its gaps are filled; one that was is whole, and a GPU that lacks it has it whole.
    ``fitted_on`` names the GPU on whose rows a table was scored."""
    tables: list[tuple[tuple[float, float, str], str, Gpu]] = []
    for other in others:
        generations, peaks, name = distance(gpu, other)
        if generations < _UNRELATED:
            for table in _tables(other):
                away = generations + (0.0 if table in other.fitted_on else _UNSCORED[generations > 0])
                tables.append(((away, peaks, name), table, other))
    values, fitted_on = dict(gpu.utilization), dict(gpu.fitted_on)
    own, whole = {key.rpartition(".")[0] for key in values}, set(fitted_on)
    for _, table, other in sorted(tables, key=lambda item: item[:2]):
        if table in whole:
            continue
        if table in other.fitted_on and table not in own:
            fitted_on[table] = other.name
            whole.add(table)
        for key, number in _tables(other)[table].items():
            values.setdefault(key, number)
    return replace(gpu, utilization=dict(sorted(values.items())), fitted_on=dict(sorted(fitted_on.items())))


@cache
def _tables(other: Gpu) -> Mapping[str, Mapping[str, float]]:
    """The constants of a GPU by table."""
    tables: dict[str, dict[str, float]] = {}
    for key, number in other.utilization.items():
        tables.setdefault(key.rpartition(".")[0], {})[key] = number
    return tables


@cache
def products_of(name: str) -> str:
    """The instructions by which the tensor cores of a packaged GPU multiply; empty where none has that name."""
    return chip_of(_packaged(name)).products if name in _files() else ""


def distance(gpu: Gpu, other: Gpu) -> tuple[float, float, str]:
    """Smaller is more similar: generations apart, then peaks and bandwidths."""
    if gpu.compute_capability == other.compute_capability is not None:
        generations: float = -1
    elif gpu.architecture == other.architecture:
        generations = 0
    elif {gpu.architecture, other.architecture} <= set(GENERATIONS):
        generations = abs(GENERATIONS.index(gpu.architecture) - GENERATIONS.index(other.architecture))
    elif gpu.architecture.rstrip("23") == other.architecture.rstrip("23"):  # cdna, cdna2, cdna3
        generations = 1
    else:
        generations = _UNRELATED
    if 0 <= generations < _UNRELATED and chip_of(gpu).products != chip_of(other).products:
        generations = min(generations + _OTHER_PRODUCTS, _UNRELATED - 0.1)
    elif halves_tensor_cores(gpu) != halves_tensor_cores(other):
        generations += _OTHER_RATE
    peak = max(gpu.peak_flop_per_s.values()) / max(other.peak_flop_per_s.values())
    bandwidth = gpu.dram_bytes_per_s / other.dram_bytes_per_s
    return generations, abs(math.log(peak)) + abs(math.log(bandwidth)), other.name


#: Words that name a vendor or a product line and do not distinguish GPUs.
_NOISE = frozenset(("nvidia", "amd", "google", "tesla", "geforce", "quadro", "instinct", "gpu", "r", "tm"))


def _words(text: str) -> tuple[str, ...]:
    return tuple(word for word in re.findall(r"[a-z0-9]+", text.lower()) if word not in _NOISE)


def _squeezed(text: str) -> str:
    return "".join(_words(text))


@cache
def _exact() -> Mapping[str, str]:
    """Squeezed label -> canonical name. Two GPUs never share one (tested)."""
    return {_squeezed(label): name for name, (labels, _) in _stored().items() for label in labels}


def _fitting(query: str) -> list[str]:
    """Names of GPUs whose words include all words of the query."""
    words = set(_words(query))
    known = {name: set(_words(" ".join(labels))) for name, (labels, _) in _stored().items()}
    return [name for name, vocabulary in known.items() if words and words <= vocabulary]


def _only(query: str, names: list[str]) -> str:
    if len(names) == 1:
        return names[0]
    asked = shown(query)
    if names:
        raise UsageError(f"GPU name {asked} fits several: {', '.join(names)}; name one (see memwall gpus)")
    near = _near(_squeezed(query), _exact())
    hint = f"; did you mean {', '.join(near)}?" if near else ""
    raise UsageError(f"no GPU named {asked}{hint} (memwall gpus lists all, a path to a TOML file works too)")


def _near(query: str, labels: Mapping[str, str], most: int = 5) -> list[str]:
    """Names whose label starts with the query, else names whose label resembles it, the best first."""
    starts = [label for label in labels if query and label.startswith(query)]
    close = starts or nearest(query, labels, most)
    return list(dict.fromkeys(labels[label] for label in close))[:most]
