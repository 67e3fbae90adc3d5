"""The HTML page: self-contained, inert against hostile names, small, and alive in a real browser."""

import json
import re
import subprocess

import pytest

from memwall.report import render
from memwall.report.document import Sentence
from memwall.report.html import blocks_html, embed, resource
from memwall.report.pages.profile_html import MAX_ROWS
from memwall.sweeping.compare import compare_gpus, compare_profile
from tests.unit.html_pages import Page
from tests.unit.places import CHROMIUM
from tests.unit.processes import HANGS_S
from tests.unit.report_fixture import NEW, OLD, make_profile


@pytest.fixture(scope="module")
def page():
    return render(make_profile(), "html")


@pytest.mark.defect("33")
def test_the_verdict_comes_first_and_the_modules_of_a_gpu_in_its_tab(page):
    """The page of two GPUs had a card of modules for each above the tabs, and the verdict below them."""
    above, *panels = page.split('<div class="panel"')
    assert len(panels) == 2
    assert "of modules by" not in above
    for part in (above, panels[0]):
        assert part.index('<p class="verdict">') < part.index("<table>")
    for panel in panels:
        assert panel.index("<table>") < panel.index("of modules by")


def test_each_gpu_has_its_levers_once(page):
    """The faster GPU has them in the answer, and not in its tab again."""
    above, slower, faster = page.split('<div class="panel"')
    assert "<h3>What would make new faster</h3>" in above
    assert "<h3>What would make it faster</h3>" in slower
    assert "What would make" not in faster


@pytest.mark.parametrize(("text", "marked"), [
    ("half (--what-if latency_s/=2)", 'half <span class="kept">(<code>--what-if</code> latency_s/=2)</span>'),
    ("x.py -m vllm --cuda-graph --tp 2", 'x.py <span class="kept"><code>-m</code> vllm</span> <code>--cuda-graph</code>'
     ' <span class="kept"><code>--tp</code> 2</span>'),
    ("h100-sxm is -3 % faster", "h100-sxm is -3\N{NO-BREAK SPACE}% faster"),
    ("2.1 ms of 3 steps, 4 GB/s", "2.1\N{NO-BREAK SPACE}ms of 3 steps, 4\N{NO-BREAK SPACE}GB/s"),
])  # fmt: skip
def test_no_line_ends_within_an_option_or_before_its_value_or_a_unit(text, marked):
    assert blocks_html([Sentence(text)]) == f"<p>{marked}</p>\n"


def test_how_to_use_a_page_is_not_printed(page):
    """What has the class is hidden by the rules for paper."""
    assert blocks_html([Sentence("Click one.", screens=True)]) == '<p class="note hint">Click one.</p>\n'
    paper = resource("report.css").partition("@media print")[2]
    assert re.search(r"[,}]\.hint(,[^{}]*)?{display:none}", paper)
    assert not re.search(r'<p class="note">[^<]*[Cc]lick', page)


def test_nothing_is_fetched(page):
    for tag, attributes in Page(page).tags:
        for name in ("src", "href", "action", "data", "poster", "srcset"):
            value = attributes.get(name)
            assert value is None or value.startswith(("data:", "#part-")), (tag, value)
    assert not re.search(r"url\(|@import|fetch\(|XMLHttpRequest|import\(", page)
    assert "default-src 'none'" in page


def test_a_hostile_name_is_inert(page):
    assert "<script>alert" not in page
    assert page.count("<script") == 2  # the data and the page's own
    assert "\\u003cscript\\u003ealert(1)\\u003c/script\\u003e" in page
    names = [kernel[0] for kernel in json.loads(Page(page).by_id["data"])["kernels"]]
    assert "mylib::<script>alert(1)</script>" in names  # the name itself is intact


def test_a_hostile_workload_name_is_inert():
    page = render(make_profile(name="</title><script>alert(1)</script>"), "html")
    assert "<script>alert" not in page
    assert "&lt;/title&gt;&lt;script&gt;alert(1)&lt;/script&gt;" in page


def test_embedded_json_cannot_close_its_element():
    text = embed({"x": "</script><!--<script>&\u2028"})
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == {"x": "</script><!--<script>&\u2028"}


def test_repeats_are_one_row_and_a_large_page_stays_small():
    page = render(make_profile(blocks=400), "html")  # 1,603 kernels; a row of each would be some 400 kB
    assert len(json.loads(Page(page).by_id["data"])["kernels"]) < 20
    assert len(page) < 400_000  # most of it the pictures, wide and narrow, of two GPUs


def test_kernels_that_do_not_repeat_are_cut_at_a_limit(monkeypatch):
    import memwall.report.pages.profile_html as html

    assert MAX_ROWS * 3 * 300 < 2_000_000  # three GPUs' rows of some 300 bytes
    monkeypatch.setattr(html, "MAX_ROWS", 3)
    page = render(make_profile(), "html")
    assert len(json.loads(Page(page).by_id["data"])["kernels"]) == 3
    assert "5 more rows, of the least time, are left out" in page


def test_a_profile_without_simulations_still_renders():
    assert "tiny" in render(make_profile(gpus=()), "html")


def test_comparisons_render():
    profile = make_profile(name="<b>x")
    page = render(compare_profile(profile, [OLD, NEW]), "html")
    assert "What flips its wall" in page
    assert "<b>x" not in page
    assert "Growth over old" in render(compare_gpus([OLD, NEW]), "html")


def test_the_page_is_deterministic(page):
    assert render(make_profile(), "html") == page


@pytest.fixture(scope="module")
def browse(page, tmp_path_factory):
    """``browse(hash)``: the page's DOM as Chromium leaves it."""
    if CHROMIUM is None:
        pytest.skip("needs a headless Chromium (apt-get install chromium)")
    folder = tmp_path_factory.mktemp("browser")
    file = folder / "page.html"
    file.write_text(page, encoding="utf-8")

    def dump(fragment: str = "") -> str:
        command = [
            CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync",
            "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage",
            f"--user-data-dir={folder}/user", "--window-size=1300,1900", "--dump-dom", f"file://{file}{fragment}",
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, timeout=HANGS_S, check=True)
        return done.stdout

    return dump


def kernels_of(dom):
    body = re.search(r'<table id="kernels">.*?<tbody>(.*?)</tbody>', dom, re.DOTALL)[1]
    rows = [re.findall(r"<td[^>]*>(.*?)</td>", row, re.DOTALL) for row in body.split("</tr>") if "<td" in row]
    return [[re.sub(r"<[^>]*>", "", cell) for cell in row] for row in rows]


@pytest.mark.browser
def test_it_sorts_by_time_first(browse):
    rows = kernels_of(browse())
    assert len(rows) == 8
    assert rows[0][0] == "mm"
    assert rows[0][1] == "2"


@pytest.mark.browser
def test_the_address_sorts_filters_and_picks_the_gpu(browse):
    rows = kernels_of(browse("#gpu=new&sort=bytes&dir=asc&filter=blocks%20forward"))
    assert [row[0] for row in rows] == ["native_layer_norm", "gelu", "mm"] or [row[0] for row in rows] == [
        "gelu",
        "native_layer_norm",
        "mm",
    ]
    assert rows[-1][9] == "8.29 us"  # two products at 3.15 us of traffic and 1 us of launch each, on the new GPU


@pytest.mark.browser
def test_a_kernel_is_found_by_its_whole_name_too(browse):
    assert {row[0] for row in kernels_of(browse("#filter=aten.mm"))} == {"mm"}


@pytest.mark.browser
def test_only_the_chosen_gpu_is_shown(browse):
    dom = browse("#gpu=new")
    shown = re.findall(r'<div class="panel" data-sim="(\d)"( hidden="")?>', dom)
    assert shown == [("0", ' hidden=""'), ("1", "")]


def test_the_roofline_draws_every_kernel_and_roof(page):
    svg = re.search(r'<svg class="chart wide"[^>]*roofline"[^>]*>.*?</svg>', page, re.DOTALL)[0]
    assert len(re.findall(r"<circle[^>]*data-key", svg)) == 8
    assert "tensor.float16" in svg
    assert "DRAM  1.00 TB/s" in svg


@pytest.mark.browser
def test_a_hostile_name_stays_text_in_the_browser(browse):
    dom = browse("#filter=alert")
    rows = kernels_of(dom)
    assert [row[0] for row in rows] == ["mylib::&lt;script&gt;alert(1)&lt;/script&gt;"]
    assert dom.count("<script") == 2
