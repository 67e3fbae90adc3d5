"""Write memwall/report/schemas from the dataclasses that are saved; the gate's is written by hand.

``python tools/schemas.py`` writes, ``--check`` compares.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from json_schema import json_schema

from memwall.analysis import compare, fused
from memwall.bench.accuracy import page as accuracy
from memwall.codegen import emit
from memwall.gate import history
from memwall.record import profile
from memwall.record.format import SavedProfile
from memwall.record.measurement import Measurement
from memwall.report.pages.fusion_record import SavedFusion
from memwall.serving import saved
from memwall.traces import analysis, comparison
from memwall.traces.saved import SavedTrace

FOLDER = Path(__file__).resolve().parents[1] / "memwall" / "report" / "schemas"

#: dataclass (or a list of one), what it is, the schema's name
RECORDS = (
    (SavedProfile, "a traced workload, its costs and its time on each GPU", profile.SCHEMA),
    (Measurement, "one run of one executor, kernel by kernel: an item of a profile's measurements",
     "measurement/1"),
    (compare.Comparison, "one workload on several GPUs, or several profiles", compare.SCHEMA),
    (SavedFusion, "what fusion wins: policies, groups, refusals, missed fusions, capture", fused.SCHEMA),
    (SavedTrace, "a profiler's trace compared with a GPU", analysis.SCHEMA),
    (comparison.SavedComparison, "traces compared with each other, or with the model", comparison.SCHEMA),
    (tuple[accuracy.SavedCell, ...],
     "how far the model is from measured kernels: what memwall accuracy --json prints", "accuracy/1"),
    (history.Row, "one workload's figures at one commit: a line of a history", history.SCHEMA),
    (saved.SavedServing, "what servers of a model do under load, their memory and their kernels", saved.SCHEMA),
    (emit.EmitIndex, "generated kernels in a folder: index.json of memwall fuse --emit", emit.SCHEMA),
)  # fmt: skip


def texts() -> dict[str, str]:
    """File name -> text of each generated schema."""
    found = {}
    for cls, title, name in RECORDS:
        kind, version = name.removeprefix("memwall.").split("/")
        found[f"{kind}-{version}.schema.json"] = json.dumps(json_schema(cls, title, name), indent=1) + "\n"
    return found


def main() -> int:
    stale = [name for name, text in texts().items() if not _same(FOLDER / name, text)]
    if "--check" not in sys.argv:
        for name in stale:
            (FOLDER / name).write_text(texts()[name], encoding="utf-8")
        return 0
    for name in stale:
        print(f"{name} is stale: python tools/schemas.py", file=sys.stderr)
    return bool(stale)


def _same(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text(encoding="utf-8") == text


if __name__ == "__main__":
    sys.exit(main())
