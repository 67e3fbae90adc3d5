"""Write the JSON schemas of what memwall saves, as ``memwall report --schema NAME`` prints them, into a folder.

python tools/schemas.py FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

from memwall.cli.report import SCHEMAS
from memwall.report.json_schema import schema_text


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in SCHEMAS:
        (folder / f"{name}-1.schema.json").write_text(schema_text(name), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
