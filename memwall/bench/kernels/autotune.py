"""The few settings of a generated kernel tried on the device, and the best one kept.

The file holds, by the source's hash, the GPU and the driver, the setting that was fastest there: another GPU, another
driver or another source asks anew.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memwall.codegen.load import source_hash
from memwall.core.errors import UsageError
from memwall.core.files import read_json, write_whole

if TYPE_CHECKING:
    from memwall.bench.kernels.devices import Device, Ready
    from memwall.bench.kernels.executors import Built

SCHEMA = "memwall.autotune/1"
#: timings of each setting, and the seconds that they may take
SAMPLES, BUDGET_S = 7, 2.0


def cache_folder() -> Path:
    """Where memwall keeps what it learned about this machine: ``MEMWALL_CACHE``, or ``memwall`` in the user's cache."""
    own = os.environ.get("MEMWALL_CACHE")
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "memwall"


@dataclass(frozen=True)
class Choices:
    """The settings chosen on one device, as the file has them."""

    path: Path
    device: str

    @classmethod
    def here(cls, environment: Mapping[str, Any]) -> Choices:
        """The choices made on a device: its name, driver and the versions that compile."""
        names = [environment.get(key) for key in ("device", "driver", "triton")]
        return cls(cache_folder() / "autotune.json", ", ".join(str(name) for name in names))

    def get(self, source: str) -> Mapping[str, int] | None:
        """The setting chosen for a source; None where there is none yet."""
        return self._read().get(self._key(source))

    def put(self, source: str, config: Mapping[str, int]) -> None:
        """Keep a choice; a folder that refuses it is no failure."""
        choices = {**self._read(), self._key(source): dict(config)}
        record = {"schema": SCHEMA, "choices": {key: choices[key] for key in sorted(choices)}}
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self.path, json.dumps(record, indent=1) + "\n")
        except (OSError, UsageError):
            return

    def _key(self, source: str) -> str:
        return f"{source_hash(source)} {self.device}"

    def _read(self) -> dict[str, Mapping[str, int]]:
        """All choices; none where the file is missing or not ours."""
        try:
            record = read_json(self.path)
            found = record["choices"] if record["schema"] == SCHEMA else {}
            return {str(k): {str(n): int(v) for n, v in config.items()} for k, config in found.items()}
        except (UsageError, KeyError, TypeError, ValueError, AttributeError):
            return {}


def choose(built: Built, ready: Callable[[], Ready], device: Device) -> Mapping[str, int]:
    """The setting whose median is lowest; one that fails to run is passed over.

    Raises:
        RuntimeError: none runs; what the first one said.
    """
    best: tuple[float, Mapping[str, int]] | None = None
    first: Exception | None = None
    for config in built.configs:
        built.configure(config)
        try:
            samples, _ = device.samples(ready(), SAMPLES, BUDGET_S)
        except Exception as error:  # too many registers, too much shared memory: another setting may do
            first = first or error
            continue
        median_s = sorted(samples)[len(samples) // 2]
        if best is None or median_s < best[0]:
            best = median_s, config
    if best is None:
        raise first or RuntimeError("there is no setting to try")
    return best[1]
