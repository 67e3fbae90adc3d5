"""Options and fixtures shared by all tests."""

from __future__ import annotations

from pathlib import Path

import pytest

GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser):
    parser.addoption("--update-golden", action="store_true", help="rewrite tests/golden from what the code prints now")


@pytest.fixture
def golden(request):
    """``golden(name, text)``: the text is what tests/golden/name says; a missing file fails."""

    def check(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert path.is_file(), f"{path} is missing; run pytest --update-golden and read it"
        assert text == path.read_text(encoding="utf-8"), f"differs from {path}; pytest --update-golden rewrites it"

    return check
