"""Tests wait for states and not for seconds: a machine that does other work as well is no failure."""

import re

from tests.unit.places import ROOT

#: a limit in seconds that a slow machine may reach; HANGS_S of processes.py is none
_LIMIT = re.compile(r"\btimeout=\d\d|\bassert .*(time|monotonic|perf_counter)\(\) - \w+ < [\d.]+$")


def test_no_test_depends_on_how_fast_the_machine_is():
    found = {
        f"{path.relative_to(ROOT)}:{number}"
        for path in (ROOT / "tests").rglob("*.py")
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if _LIMIT.search(line)
    }
    assert not found
