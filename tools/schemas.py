"""Write memwall/report/schemas from the dataclasses that are saved; the gate's is written by hand.

``python tools/schemas.py`` writes, ``--check`` compares.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from json_schema import json_schema

from memwall.analysis import compare, fused
from memwall.bench.accuracy import page as accuracy
from memwall.codegen import emit
from memwall.core.question import Option, options_of
from memwall.gate import history
from memwall.record import profile
from memwall.record.format import SavedProfile
from memwall.record.measurement import Measurement
from memwall.report.pages.fusion_record import SavedFusion
from memwall.serving import saved
from memwall.serving.question import ServeOptions
from memwall.step import Step
from memwall.traces import analysis, comparison
from memwall.traces.saved import SavedTrace
from memwall.training.layout import Parallelism
from memwall.training.question import Job

#: type of an option -> its name in a schema; whole numbers are numbers
TYPES = {str: "string", bool: "boolean", float: "number", int: "integer"}
SETTINGS = "settings/1: how a step is traced and run, as keywords of memwall.profile and settings of a workload"
#: other questions of the schema of settings: the function whose keywords the options are -> the question
QUESTIONS = {"serve": ServeOptions, "parallel": Job, "layout": Parallelism}
_TEXTS = {"type": "array", "items": {"type": "string"}}
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
    (history.HistoryRow, "one workload's figures at one commit: a line of a history", history.SCHEMA),
    (saved.SavedServing, "what servers of a model do under load, their memory and their kernels", saved.SCHEMA),
    (emit.EmitIndex, "generated kernels in a folder: index.json of memwall fuse --emit", emit.SCHEMA),
)  # fmt: skip


def settings_schema(question: Any) -> dict[str, Any]:
    """The schema of the settings of a workload in TOML, by the options of a question; ``$defs`` has other questions."""
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": SETTINGS, "type": "object"}
    others = {name: {"type": "object", "properties": _properties(each)} for name, each in QUESTIONS.items()}
    return {**head, "properties": _properties(question), "$defs": others}


def _properties(question: Any) -> dict[str, Any]:
    known = {said.flag or name: said for name, said in options_of(question).items() if said.help}
    return {name: _property(said) for name, said in known.items()}


def _property(said: Option) -> dict[str, Any]:
    kinds = [{"type": name} for kind, name in TYPES.items()
             if kind in said.types and not (kind is int and float in said.types)]  # fmt: skip
    if said.several:
        kinds = [*kinds, {"type": "array", "items": kinds[0]}] if int in said.types else [_TEXTS]
    if said.choices:
        kinds = [{"enum": [*said.choices]}]
    if said.default is None:
        kinds.append({"type": "null"})
    return {**(kinds[0] if len(kinds) == 1 else {"anyOf": kinds}), "description": said.help}


def texts() -> dict[str, str]:
    """File name -> text of each generated schema."""
    found = {"settings-1.schema.json": json.dumps(settings_schema(Step), indent=1) + "\n"}
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
