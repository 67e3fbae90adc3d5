"""KernelBench's times of whole modules (ScalingIntelligence/KernelBench): the forward pass in float32 as the module
stands, gradients enabled, events around one call after a synchronize.

The modules themselves are saved profiles in an archive next to the table, ``NAME_records.tar.xz`` for
``NAME_times.csv``, one ``MODULE.json`` each.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path

from memwall.analysis.accuracy.modules import ModuleSample
from memwall.analysis.accuracy.tables.base import Kind, Record, Skip, gpu_named, known, seconds
from memwall.core.errors import UsageError
from memwall.record.profile import Profile

#: way of the table → policy and launch of the schedule
_WAYS: Mapping[str, tuple[str, str]] = {
    "eager": ("eager", "eager"), "compile_cudagraphs": ("eager", "graph"),
    # of benchmarks/families.py
    "eager_queue": ("eager", "eager"), "eager_graph": ("eager", "graph"),
}  # fmt: skip


class Modules(Kind):
    """A table whose rows name modules of an archive of profiles."""

    def read(self, record: Record, source: Path) -> Iterator[ModuleSample]:
        gpu, way, module = gpu_named(record["gpu"]), record["way"], record["module"]
        policy, launch = known(_WAYS, way, "way")
        profiles = _profiles(source.with_name(source.name.removesuffix("_times.csv") + "_records.tar.xz"))
        profile = known(profiles, module, "the profile of module")
        level = module.partition("_")[0].replace("level", "level ")
        yield ModuleSample(
            self.name, record["gpu"], gpu, f"{level} {way}", module, profile, policy, launch, seconds(record, "mean_ms")
        )


@lru_cache(maxsize=2)
def _profiles(archive: Path) -> Mapping[str, Profile]:
    """Module → its profile. Raises :class:`Skip` without the archive, UsageError: it is damaged."""
    if not archive.exists():
        raise Skip(f"the profiles of the modules are not here: {archive.name}")
    found = {}
    try:
        with tarfile.open(archive) as members:
            for member in members:
                handle = members.extractfile(member)
                if handle and member.name.endswith(".json"):
                    found[Path(member.name).stem] = Profile.from_dict(json.load(handle), f"{archive}: {member.name}")
    except (OSError, EOFError, tarfile.TarError, ValueError, RecursionError) as error:
        raise UsageError(f"{archive} is no archive of profiles: {error}") from None
    return found


MODULES = Modules("kernelbench", "gpu way module mean_ms std_ms trials")
