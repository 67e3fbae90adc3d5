"""The page in a real browser: what a pointer, a keyboard and a click do, and that nothing else runs."""

import json
import re
import subprocess
from base64 import b64encode
from dataclasses import replace
from hashlib import sha256
from html import unescape

import pytest

from memwall.report import render
from memwall.sweeping.compare import compare_profiles
from tests.unit.places import CHROMIUM
from tests.unit.processes import HANGS_S
from tests.unit.report_fixture import HOSTILE_MODULE, NEW, make_profile

pytestmark = pytest.mark.browser

#: what a visitor does: each line of a test's script, whose results stand in the title as JSON
_VISIT = """
const pause = () => new Promise((go) => setTimeout(go, 30));
const one = (selector) => document.querySelector(selector);
const every = (selector) => [...document.querySelectorAll(selector)];
const shown = (nodes) => nodes.filter((node) => node.getClientRects().length);
const press = (node, key) => node.dispatchEvent(new KeyboardEvent("keydown", {{ key, bubbles: true }}));
const type = (field, text) => {{ field.value = text; field.dispatchEvent(new Event("input")); }};
const rows = () => every("#kernels tbody tr:not(.more)").length;
const errors = [];
addEventListener("error", (event) => errors.push(event.message));
(async () => {{ const said = await (async () => {{ {script} }})(); await pause();
document.title = JSON.stringify({{ said, errors }}); }})();
"""


@pytest.fixture(scope="module")
def page():
    return render(make_profile(), "html")


@pytest.fixture
def visit(tmp_path):
    """``visit(page, script, width, at)``: what the script returns, of the page at ``#at``; no error of its own."""
    if CHROMIUM is None:
        pytest.skip("needs a headless Chromium (apt-get install chromium)")

    def go(text, script, *flags, width=1300, at=""):
        text_of = _VISIT.format(script=script)
        digest = b64encode(sha256(text_of.encode()).digest()).decode()
        allowed = text.replace("script-src ", f"script-src 'sha256-{digest}' ", 1)
        file = tmp_path / "page.html"
        file.write_text(allowed.replace("</body>", f"<script>{text_of}</script>\n</body>"), encoding="utf-8")
        command = [
            CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync",
            "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage",
            "--virtual-time-budget=60000", f"--user-data-dir={tmp_path}/user", f"--window-size={width},1900", *flags,
            "--dump-dom", f"file://{file}#{at}",
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, timeout=HANGS_S, check=True)
        found = json.loads(unescape(re.search(r"<title>(.*?)</title>", done.stdout, re.DOTALL)[1]))
        assert not found["errors"]
        return found["said"]

    return go


def test_the_pointer_is_told_all_that_is_known_of_a_kernel(page, visit):
    """Two products of 1024 x 1024 by 1024 x 1024 in a block: 2 x 2 x 1024^3 FLOPs, 6 x 2 MiB of bytes."""
    said = visit(page, """
        const mark = shown(every('svg.chart circle[data-title^="mm"]'))[0], box = mark.getBoundingClientRect();
        mark.dispatchEvent(new PointerEvent("pointermove", { clientX: box.x, clientY: box.y, bubbles: true }));
        return one("#tip").textContent;
    """)  # fmt: skip
    assert "2 kernels, 4.29 GFLOP, 8.39 MB read and 4.19 MB written" in said
    assert "limited by compute" in said and "80 % range" in said


def test_kernels_of_one_name_in_one_module_are_told_apart(page, visit):
    """Forward and backward of a product: the time that a mark's title has is that of the details below it, and a
    click finds its row alone."""
    titles = visit(page, """
        return shown(every('svg.chart circle[data-title^="mm"]')).map((mark) => {
            mark.dispatchEvent(new PointerEvent("pointermove", { clientX: 9, clientY: 9, bubbles: true }));
            const [title, , times] = one("#tip").textContent.split("\\n");
            mark.dispatchEvent(new MouseEvent("click", { bubbles: true }));
            return [/[\\d.]+ us/.exec(title)[0], times.split(" (")[0], one("#filter").value, rows()];
        });
    """)  # fmt: skip
    assert all(title == times for title, times, *_ in titles)
    assert [each[2:] for each in titles] == [
        [f"aten.mm blocks.*.proj {phase} 1024x1024", 1] for phase in ("forward", "backward")
    ]


def test_a_mark_that_is_clicked_stands_out_in_every_picture(page, visit):
    """Of the roofline one mark is left, of the timeline its kernels; what is typed into the filter ends it."""
    marks, lanes, after = visit(page, """
        const mark = shown(every('svg.chart circle[data-title^="mm"]'))[0], key = mark.dataset.key;
        mark.dispatchEvent(new MouseEvent("click", { bubbles: true }));
        const lit = (label) => [...new Set(shown(every(`svg.chart[aria-label$="${label}"] [data-key]:not(.miss)`))
            .map((each) => each.dataset.key === key))];
        const said = [lit("roofline"), lit("the step over time")];
        type(one("#filter"), "");
        return [...said, every("svg.chart .miss").length];
    """)  # fmt: skip
    assert (marks, lanes, after) == ([True], [True], 0)


def test_each_module_of_a_flame_graph_finds_its_kernels(visit):
    """One has an override of the direction of text in its name, and a row of the table a number for the star."""
    plain = make_profile()
    (graph,) = plain.graphs
    ops = tuple(replace(op, module="odd\u202ename") if op.module == HOSTILE_MODULE else op for op in graph.ops)
    odd = replace(plain, graphs=(replace(graph, ops=ops),))
    found = visit(render(odd, "html"), """
        const boxes = shown(every('svg.chart[aria-label$="flame graph of modules by time"] rect[data-key^="zoom:"]'));
        return boxes.map((box) => { box.dispatchEvent(new MouseEvent("click", { bubbles: true })); return rows(); });
    """)  # fmt: skip
    assert len(found) > 4 and min(found) > 0


def test_modules_are_found_by_a_regular_expression_with_their_share(page, visit):
    """``blocks`` and all that is inside it: one outermost module; its share is the one that the whole's title says."""
    count, share, hits, misses, bad = visit(page, """
        const field = one('input[aria-label="find modules"]'), said = field.parentNode.querySelector("span");
        type(field, "^blocks");
        const svg = shown(every("svg.chart")).find((each) => each.querySelector('[data-key^="zoom:"]'));
        const [count, share] = said.textContent.match(/[\\d.]+/g);
        const hits = svg.querySelectorAll("rect.hit").length, misses = svg.querySelectorAll("rect.miss").length;
        const outer = [...svg.querySelectorAll("rect.hit")][0].dataset.title;
        type(field, "(");
        return [+count, [+share, outer], hits, misses, said.textContent];
    """)  # fmt: skip
    assert count == hits > 0 < misses
    assert share[0] == pytest.approx(float(re.search(r"([\d.]+) %$", share[1])[1]))
    assert bad == "not a regular expression yet"


def test_modules_are_found_under_every_tab(page, visit):
    """The field was hidden under each tab but the first."""
    assert visit(page, """
        return every("#tabs button").map((tab) => {
            tab.click();
            const [field] = shown(every('input[aria-label="find modules"]'));
            type(field, ".");
            return field.parentNode.querySelector("span").textContent.split(", ")[1];
        });
    """) == ["100.0 % of the whole"] * 2  # fmt: skip


def test_modules_before_and_after_have_a_share_each(visit):
    """A step of one block, and of two: all of each, and not 200 % of one whole."""
    both = compare_profiles([make_profile((NEW,), blocks=1), make_profile((NEW,), blocks=2)])
    assert visit(render(both, "html"), """
        every("button[data-pick]")[1].click();
        const field = one('input[aria-label="find modules"]');
        const found = (text) => { type(field, text); return field.parentNode.querySelector("span").textContent; };
        return [".", "(whole step)"].map((text) => found(text).replace(/^\\d+ found, /, ""));
    """) == ["100.0 % and 100.0 % of the whole"] * 2  # fmt: skip


def test_a_row_shows_its_details_and_its_marks(page, visit):
    before, after, seen, told, again = visit(page, """
        const line = one("#kernels tbody tr"), before = every("svg.chart .miss").length;
        line.click();
        const after = every("svg.chart .miss").length;
        const key = data => [...new Set(data.map((mark) => mark.dataset.key))];
        const seen = key(shown(every("svg.chart circle:not(.miss)[data-key]")));
        const told = one("#kernels tr.more").textContent;
        line.click();
        return [before, after, seen, told, every("#kernels tr.more, svg.chart .miss").length];
    """)  # fmt: skip
    assert (before, again) == (0, 0)
    assert after > 0 and len(seen) == 1
    assert "compute" in told and "memory" in told


def test_a_mark_of_the_timeline_finds_its_kernels(page, visit):
    assert visit(page, """
        const svg = shown(every('svg.chart[aria-label$="the step over time"]'))[0];
        const mark = svg.querySelector('rect[data-title^="mm"]');
        mark.dispatchEvent(new MouseEvent("click", { bubbles: true }));
        return [one("#filter").value.startsWith("aten.mm"), rows() < 8];
    """) == [True, True]  # fmt: skip


def test_the_keyboard_goes_from_mark_to_mark_and_from_tab_to_tab(page, visit):
    at, told, focus, tab = visit(page, """
        const svg = shown(every('svg.chart[tabindex="0"]'))[0];
        svg.focus(); press(svg, "ArrowRight"); press(svg, "ArrowRight");
        const at = svg.querySelectorAll(".at").length, told = !one("#tip").hidden;
        press(document.body, "/");
        const focus = document.activeElement.id;
        press(one('#tabs button[aria-selected="true"]'), "ArrowRight");
        return [at, told, focus, one('#tabs button[aria-selected="true"]').textContent];
    """)  # fmt: skip
    assert (at, told, focus, tab.strip()) == (1, True, "filter", "new")


def test_a_picture_is_saved_in_the_colours_that_it_has(page, visit):
    name, text, png = visit(page, """
        const saved = [], url = URL.createObjectURL, texts = [], Whole = Blob;
        URL.createObjectURL = (blob) => { saved.push(blob); return url(blob); };
        window.Blob = function (parts, options) { texts.push(parts[0]); return new Whole(parts, options); };
        const names = [];
        HTMLAnchorElement.prototype.click = function () { names.push(this.download); };
        const [svg, png] = shown(every("p.save"))[0].querySelectorAll("button");
        svg.click(); png.click();
        for (let i = 0; i < 1000 && saved.length < 2; i++) await pause();
        return [names, texts[0], [saved[1] && saved[1].type, saved[1] && saved[1].size > 1000]];
    """)  # fmt: skip
    assert [each.rpartition(".")[2] for each in name] == ["svg", "png"]
    assert text.startswith("<svg") and "var(--" not in text and "<title>" in text
    assert png == ["image/png", True]


def test_each_picture_is_saved_under_a_name_of_its_own(page, visit):
    names = visit(page, """
        const names = [];
        HTMLAnchorElement.prototype.click = function () { names.push(this.download); };
        for (const line of every("p.save.wide")) line.querySelector("button").click();
        return names;
    """)  # fmt: skip
    assert len(names) > 10 and len({*names}) == len(names)
    assert "old-roofline.svg" in names


def test_contents_lead_to_what_is_shown(page, visit):
    """Each line of the contents names a part that is there; parts of the GPU that is not shown are not listed."""
    links, there = visit(page, """
        const links = shown(every("#contents a")).map((link) => link.getAttribute("href"));
        return [links, links.map((link) => one(link) && one(link).getClientRects().length > 0)];
    """)  # fmt: skip
    assert len(links) > 4 and all(there)


def test_a_link_to_a_part_shows_it_under_its_tab(page, visit):
    """The first part of the second panel, which is hidden at first."""
    part = re.search(r'data-sim="1" hidden>\s*<section class="card" id="(part-\d+)"', page)[1]
    chosen, seen, hash_ = visit(page, f"""
        const tabs = every('#tabs button[aria-selected="true"]').map((tab) => tab.dataset.sim);
        return [tabs, one("#{part}").getClientRects().length > 0, location.hash];
    """, at=part)  # fmt: skip
    assert (chosen, seen, hash_) == (["1"], True, f"#{part}")


def test_nothing_but_the_pages_own_scripts_runs(page, visit):
    """A script and a handler that were smuggled into the page are refused by its policy."""
    smuggled = page.replace("<main>", '<main><script>window.bad = 1</script><b onclick="window.bad = 2">x</b>', 1)
    assert visit(smuggled, 'one("main b").click(); return window.bad || "refused";') == "refused"


@pytest.mark.parametrize("width", [400, 1300])
def test_nothing_is_wider_than_the_page(page, visit, width):
    assert visit(page, "return document.documentElement.scrollWidth <= innerWidth;", width=width)
