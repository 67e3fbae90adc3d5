"""The committed reports are those that the code writes."""

import importlib.util

import pytest

from tests.unit.places import ROOT

SPEC = importlib.util.spec_from_file_location("reports_render", ROOT / "lab" / "reports" / "render.py")
render = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(render)


#: what models all reference workloads, measured pairs or odd models anew: facts of these have tests of their own
LONG = ("bytes.md", "flops.md", "fusion.md", "liger_pairs.md", "odd_models.md")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.whole) if name in LONG else name for name in render.TEXTS]
)
def test_report_is_current(name, monkeypatch):
    monkeypatch.chdir(ROOT)
    text = render.TEXTS[name]()
    if text is None:
        pytest.skip("what it needs (measured rows, transformers) is not at hand")
    assert text == (ROOT / "reports" / name).read_text(encoding="utf-8"), "run: python lab/reports/render.py"


def test_no_report_says_no():
    for name in render.TEXTS:
        assert "| NO |" not in (ROOT / "reports" / name).read_text(encoding="utf-8")
