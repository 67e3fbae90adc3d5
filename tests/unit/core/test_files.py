"""Records written piece by piece; files that are whole or absent."""

import json
from pathlib import Path

import pytest

from memwall.core.errors import UsageError
from memwall.core.files import json_pieces, write_whole

ROWS = [{"name": "two\nlines", "kernels": [], "sizes": [1, {"a": None}]}, 7, "\u00e9", {}]


@pytest.mark.parametrize("rows", [[], ROWS[:1], ROWS])
def test_the_pieces_are_what_json_writes(rows: list) -> None:
    record = {"schema": "a/1", "rows": rows, "totals": {"time_s": 1.5, "none": []}, "empty": {}}
    lazy = {**record, "rows": iter(rows)}
    assert "".join(json_pieces(lazy)) == json.dumps(record, indent=1) + "\n"


def test_a_file_of_pieces_is_whole_or_absent(tmp_path: Path) -> None:
    write_whole(tmp_path / "a.json", json_pieces({"rows": iter([1])}))
    assert json.loads((tmp_path / "a.json").read_text()) == {"rows": [1]}
    with pytest.raises(ValueError, match="JSON compliant"):
        write_whole(tmp_path / "b.json", json_pieces({"rows": iter([1, float("nan")])}))
    with pytest.raises(UsageError):
        write_whole(tmp_path / "no" / "c.json", json_pieces({"rows": iter([1])}))
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]
