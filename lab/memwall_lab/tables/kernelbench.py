"""KernelBench's times of whole modules (ScalingIntelligence/KernelBench): the forward pass in float32 as the module
stands, under ``torch.no_grad`` (its ``scripts/generate_baseline_time.py``), events around one call after a synchronize.

The modules themselves are saved profiles in an archive next to the table, ``NAME_records.tar.xz`` for
``NAME_times.csv``, one ``MODULE.json`` each.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from memwall.bench.accuracy.kinds import Record, Skip, TableKind, seconds
from memwall.core.errors import UsageError
from memwall.hardware.host import load_host
from memwall.record.profile import Profile
from memwall_lab.modules import ModuleSample
from memwall_lab.tables.base import gpu_named, known

#: way of the table → policy and launch of the schedule; Dynamo's backend cudagraphs replays eager's kernels
_WAYS: Mapping[str, tuple[str, str]] = {
    "eager": ("eager", "call"), "compile_cudagraphs": ("eager", "replay"),
    # of lab/benchmarks/families.py
    "eager_queue": ("eager", "eager"), "eager_graph": ("eager", "graph"),
}  # fmt: skip

#: label of a machine of a cloud → its host relative to cloud-vm, fitted to a third of the modules, those whose CRC-32
#: is 0 or 2 modulo 6, where the host decides
_CLOUD_HOSTS: Mapping[str, float] = {
    "NVIDIA A100 80GB (Modal)": 1.05, "NVIDIA A10G (Modal)": 0.77, "NVIDIA T4 (Modal)": 1.08,
}  # fmt: skip


class Modules(TableKind):
    """A table whose rows name modules of an archive of profiles."""

    def read(self, record: Record, source: Path) -> Iterator[ModuleSample]:
        gpu, way, module = gpu_named(record["gpu"]), record["way"], record["module"]
        if record["gpu"] in _CLOUD_HOSTS:
            gpu = replace(gpu, host=load_host("cloud-vm").scaled(_CLOUD_HOSTS[record["gpu"]]))
        policy, launch = known(_WAYS, way, "way")
        profiles = _profiles(source.with_name(source.name.removesuffix("_times.csv") + "_records.tar.xz"))
        profile = known(profiles, module, "the profile of module")
        group = module.partition("_")[0]  # KernelBench's level, or the family of lab/benchmarks/families.py
        is_level = group.startswith("level")
        yield ModuleSample(
            self.name if is_level else "families", record["gpu"], gpu, f"{group.replace('level', 'level ')} {way}",
            module, profile, policy, launch, seconds(record, "mean_ms"),
        )  # fmt: skip


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
                    made = Profile.from_dict(json.load(handle), f"{archive}: {member.name}")
                    found[Path(member.name).stem] = made
    except (OSError, EOFError, tarfile.TarError, ValueError, RecursionError) as error:
        raise UsageError(f"{archive} is no archive of profiles: {error}") from None
    return found


MODULES = Modules("kernelbench", "gpu way module mean_ms std_ms trials")
