"""docs/gate.md names what there is."""

import re
from pathlib import Path

from memwall.analysis.quantities import LIMITS
from memwall.cli.output import GATE_SUFFIXES
from memwall.gate.reading import OPTIONS

TEXT = (Path(__file__).parents[3] / "docs" / "gate.md").read_text(encoding="utf-8")


def test_every_quantity_has_its_line():
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \| (\w[\w ]*) \|", TEXT, re.MULTILINE)
    told = {name.strip("`"): unit for names, unit in rows for name in names.split(", ")}
    assert told == {quantity.name: quantity.unit for quantity in LIMITS.values()}


def test_what_modules_have_is_said():
    summed = [q.name for q in LIMITS.values() if q.adds]
    assert summed == list(LIMITS)[:5] and "The first five can be limited per module" in TEXT


def test_every_setting_and_every_kind_of_file_is_named():
    assert [name for name in OPTIONS if f"`{name}`" not in TEXT] == []
    endings = {kind: [s for s, k in GATE_SUFFIXES.items() if k == kind] for kind in GATE_SUFFIXES.values()}
    assert [kind for kind, suffixes in endings.items() if not any(s in TEXT for s in suffixes)] == []
