"""The page of a sweep in a browser, on a wide and on a narrow screen; colours and numbers of its pictures."""

import pytest

from memwall.report.figures.colors import WALL_COLORS
from memwall.report.figures.scene import Dot, Scene
from memwall.report.kinds import render
from memwall.sweeping.axes import Space, axes_of
from memwall.sweeping.figure import _cell_texts, growth_chart, line_colors
from memwall.sweeping.growth import GROWS_ON, Growth, GrowthSeries
from memwall.sweeping.kinds import KINDS
from memwall.sweeping.page import SweepReport
from memwall.sweeping.run import Question, run
from tests.unit.configs import SHORT_LLAMA, target_of
from tests.unit.devtools import CHROMIUM, Page

VARY = {"batch": [1, 2, 4, 8, 16, 32, 64, 128, 256, 512], "gpu": ["a100", "h100", "h200", "b200"], "tp": [1, 2],
        "context": [2048]}  # fmt: skip
#: boxes that go beyond the right end of the page, and are in none that scrolls or cuts them off
TOO_WIDE = """[...document.querySelectorAll("body *")].filter((box) => {
  if (box.getBoundingClientRect().right <= innerWidth + 1) return false;
  for (let at = box; at; at = at.parentElement)
    if (getComputedStyle(at).overflowX !== "visible" && at !== document.body) return false;
  return true;
}).map((box) => box.outerHTML.slice(0, 80))"""


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    pytest.importorskip("transformers", reason="transformers is not installed")
    folder = tmp_path_factory.mktemp("sweep")
    question = Question(kind=KINDS["decode"], workers=0, cache=False, prices={"h100-sxm": 2.5, "b200": 4.5},
                        pareto=("tokens_per_s_per_user", "tokens_per_s_per_gpu", "peak_memory"))  # fmt: skip
    found = run([Space(target_of(folder, SHORT_LLAMA), axes_of(VARY))], question)
    path = folder / "page.html"
    path.write_text(render(SweepReport(found), "html"), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    if CHROMIUM is None:
        pytest.skip("needs a headless Chromium (apt-get install chromium)")
    opened = Page(tmp_path_factory.mktemp("browser"))
    yield opened
    opened.close()


@pytest.mark.browser
@pytest.mark.parametrize("width", [400, 1280])
def test_nothing_is_wider_than_the_page(page, browser, width):
    browser.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
    browser.open(page.as_uri())
    browser.wait_for("document.readyState === 'complete' && document.querySelector('#parallel p')?.textContent")
    assert browser.run("innerWidth") == width and browser.run("document.documentElement.scrollWidth") <= width
    assert browser.run(TOO_WIDE) == []


@pytest.mark.browser
def test_a_drag_along_an_axis_keeps_the_points_within(page, browser):
    """The upper half of the first axis, batch: of 1 to 512 on a logarithmic axis those from 32 on, 5 of 10."""
    browser.call("Emulation.setDeviceMetricsOverride", width=1280, height=900, deviceScaleFactor=1, mobile=False)
    browser.open(page.as_uri())
    browser.wait_for("document.querySelector('#parallel p')?.textContent.startsWith('80 of 80 points')")
    browser.run("document.querySelector('#parallel canvas').scrollIntoView({block: 'center', behavior: 'instant'})")
    box = browser.run("(({left, top, height}) => [left, top, height])("
                      "document.querySelector('#parallel canvas').getBoundingClientRect())")  # fmt: skip
    left, top, height = box
    middle = top + 48 + (height - 48 - 22) / 2
    for kind, y in (("mousePressed", top + 40), ("mouseMoved", middle), ("mouseReleased", middle)):
        browser.call("Input.dispatchMouseEvent", type=kind, x=left + 46, y=y, button="left", buttons=1, clickCount=1)
    assert browser.run("document.querySelector('#parallel p').textContent").startswith("40 of 80 points")


def test_no_line_has_the_colour_of_a_wall_that_its_dots_have():
    """Of six colours four are like a wall's: lines take them last."""
    assert len(set(line_colors(6, [*WALL_COLORS]))) == 6
    plain, with_latency = line_colors(5, []), line_colors(5, ["overhead", "latency"])
    assert len(set(with_latency)) == 5 and plain[4] not in with_latency  # blue-green, as latency is


@pytest.mark.parametrize(("value", "texts"), [
    (10_558.3, ("10,558", "11k")), (3_661.0, ("3,661", "3.7k")), (0.0618, ("0.0618", "0.062")), (None, ("-", "-")),
])  # fmt: skip
def test_the_number_of_a_narrow_cell_is_short(value, texts):
    assert _cell_texts(value) == texts


def test_a_ring_is_where_to_stop_and_nowhere_on_what_grows_on():
    """Twice the tokens with each doubling: no place to stop; half of the line beyond the memory: the last that fits."""
    ys = (100.0, 200.0, 400.0, 800.0)
    grows = GrowthSeries(name="a", xs=(1.0, 2.0, 4.0, 8.0), ys=ys, walls=("bandwidth",) * 4, fits=(True,) * 4)
    ends = GrowthSeries(name="b", xs=grows.xs, ys=ys, walls=grows.walls, fits=(True, True, False, False))
    assert grows.stop == (8.0, GROWS_ON) and ends.stop == (2.0, "the memory ends")
    rings = []
    for series in (grows, ends):
        scene = Scene(600.0)
        growth_chart(Growth(across="batch", quantity="tokens_per_s", series=(series,), fixed=()))(scene)
        rings.append(sum(isinstance(mark, Dot) and mark.hollow and mark.r == 8.0 for mark in scene.marks))
    assert rings == [0, 1]
