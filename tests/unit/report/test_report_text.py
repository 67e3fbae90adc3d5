"""Text and Markdown: golden files of the made-up profile, hostile names, narrow pages."""

import html
import re

import pytest

import memwall.report.columns as col
from memwall.core.errors import UsageError
from memwall.hardware.lookup import all_gpus, load_gpu
from memwall.report import render
from memwall.report.document import Column, Document, Section, Sentence, ShellCommand, Table, clean
from memwall.report.html import to_html
from memwall.report.markdown import escape, to_markdown
from memwall.report.pages.gpus import GpuReport, GpusReport
from memwall.report.pages.ops import RulesReport
from memwall.report.text import cut, fit, to_text
from memwall.sweeping.compare import compare_gpus, compare_profile, compare_profiles
from tests.unit.report_fixture import NEW, OLD, make_gpu, make_profile


@pytest.fixture(scope="module")
def profile():
    return make_profile()


@pytest.fixture(scope="module")
def comparison(profile):
    return compare_profile(profile, [OLD, NEW], price={"old": 1.0, "new": 4.0})


@pytest.mark.parametrize("by", ["op", "module", "class", "phase"])
def test_text_of_a_profile(profile, golden, by):
    golden(f"profile_{by}.txt", render(profile, "text", by=by, width=110))


def test_text_of_a_profile_on_one_gpu(golden):
    golden("profile_one_gpu.txt", render(make_profile(gpus=(OLD,)), "text", width=110, top=3, sort="bytes"))


GOLDEN = {
    "profile.md": lambda profile, comparison: profile,
    "compare_gpus.txt": lambda profile, comparison: comparison,
    "compare_gpus.md": lambda profile, comparison: comparison,
    "compare_profiles.txt": lambda profile, comparison: compare_profiles([profile, make_profile(blocks=3)]),
    "compare_machines.txt": lambda profile, comparison: compare_gpus([OLD, NEW]),
    "rules.txt": lambda profile, comparison: RulesReport(),
    "gpu.txt": lambda profile, comparison: GpuReport(OLD),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_other_reports(profile, comparison, golden, name):
    golden(name, render(GOLDEN[name](profile, comparison), "md" if name.endswith("md") else "text"))


@pytest.mark.parametrize("width", [100, 110, 118, 160])
def test_no_line_is_wider_than_the_page(profile, comparison, width):
    texts = [render(thing, "text", width=width) for thing in (profile, comparison)]
    texts += [render(RulesReport(), "text", width=width), render(GpuReport(load_gpu("h100-sxm")), "text", width=width)]
    texts.append(render(GpusReport(list(all_gpus())), "text", width=width))
    for text in texts:
        assert max(map(len, text.splitlines())) <= width


@pytest.mark.parametrize("width", [40, 80, 100])
def test_no_number_is_ever_cut(profile, width):
    text = render(profile, "text", width=width)
    assert "187.48" in text
    for line in text.splitlines():
        for word in line.split():
            assert not re.match(r"^[\d,.]+…$", word), line


def test_the_header_names_what_is_unmodeled(profile):
    text = render(profile, "text")
    assert "coverage        91.7 % of 12 ops" in text  # 11 of 12
    assert "no formula for mylib.mystery" in text
    assert "with attention counted dense, as most tools do: 12,884,901,888" in text  # 4 x 2^31 + 2^32


def test_a_hostile_name_is_inert_in_text(profile):
    text = render(profile, "text", width=200)
    assert "a|b.`c`[red]x y$1$" in text  # as it stands, but without its ANSI colour and newline
    assert "\x1b" not in text
    colored = render(profile, "text", width=200, color=True)
    assert "\x1b[31m" not in colored.replace("\x1b[1;31m", "")
    assert "[red]" in colored


def test_a_hostile_name_is_inert_in_markdown(profile):
    text = render(profile, "md")
    assert "<script" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert r"a\|b.\`c\`\[red\]x y\$1\$" in text
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert rows
    for row in rows:
        assert len(re.findall(r"(?<!\\)\|", row)) in {4, 6, 7, 12, 13, 14, 15, 16}, row  # no cell adds a column


@pytest.mark.parametrize(("text", "escaped"), [
    ("a|b", r"a\|b"),
    ("<b>&", "&lt;b&gt;&amp;"),
    ("![x](http://e.org)", r"!\[x\](http&#58;//e.org)"),
    ("line\nbreak", "line break"),
    ("_x_ *y* `z`", r"\_x\_ \*y\* \`z\`"),
    ("@user", "&#64;user"),
    ("back\\|slash", r"back\\\|slash"),
])  # fmt: skip
def test_markdown_escape(text, escaped):
    assert escape(text) == escaped


@pytest.mark.parametrize(("text", "cleaned"), [
    ("\x1b[31mred\x1b[0m", "red"), ("\x1b]0;title\x07name", "name"), ("a\r\nb\tc", "a b c"), ("\u202eevil", "evil"),
    ("\ud800x", "x"), ("naïve 层", "naïve 层"),
])  # fmt: skip
def test_clean(text, cleaned):
    assert clean(text) == cleaned


def test_an_unknown_breakdown_is_the_users_error(profile):
    with pytest.raises(UsageError, match="cannot group by 'color'; choose one of op, module, class, phase"):
        render(profile, "text", by="color")


def test_an_unknown_kind_is_the_users_error(profile, comparison):
    with pytest.raises(UsageError, match="no 'gif' form; there is text, md, html"):
        render(profile, "gif")
    with pytest.raises(UsageError, match=r"a comparison has no 'trace\.json' form"):
        render(comparison, "trace.json")
    with pytest.raises(TypeError, match="'colour'"):
        render(profile, "text", colour=True)


def test_a_misfit_is_said(profile):
    text = render(compare_profile(profile, [make_gpu("small", dram_bytes=1_000_000)]), "text")
    assert " NO" in text
    assert "a step; it fits none of them." in " ".join(text.split())
    two = render(compare_profile(profile, [make_gpu("small", dram_bytes=1_000_000), NEW]), "text", width=200)
    assert "at the bandwidth wall; it does not fit small." in two


def test_growth_reads_from_the_first():
    text = render(compare_gpus([OLD, NEW]), "text")
    assert "Growth over old" in text
    assert "fp16 FLOP/s grew 10.0 times, bandwidth 2.0 times, capacity 5.0 times" in text
    assert "a kernel must do 5.0 times as" in text


def test_many_gpus_still_fit_the_page(profile):
    gpus = [make_gpu(f"quite-a-long-name-{i}", 1.0 + 2 * i) for i in range(10)]
    text = render(compare_profile(profile, gpus), "text", width=118)
    assert max(map(len, text.splitlines())) <= 118
    assert "quite-a-long-name-9" in text
    growth = render(compare_gpus(gpus), "text", width=118)
    assert max(map(len, growth.splitlines())) <= 118


def test_a_column_has_one_unit():
    column, cells = col.si("FLOPs", "FLOP", [8.2e12, 5e9, 7e9, 0, None])
    assert (column.unit, cells) == ("GFLOP", ["8,200.0", "5.0", "7.0", "0.0", "-"])
    column, cells = col.seconds("time", [2.5e-3, 3e-6, 1e-9])
    assert (column.unit, cells) == ("us", ["2,500.0", "3.0", "<0.1"])


def test_numbers_never_round_to_a_false_zero():
    assert col.number(0.004, 2) == "<0.01"
    assert col.number(0.005, 2) in {"0.01", "0.00"}
    assert col.number(0.0, 2) == "0.00"
    assert [col.times(v) for v in (46.67, 5.0, 706.4)] == ["46.7x", "5.00x", "706x"]


def test_fitting_cuts_names_first_then_leaves_optional_columns_out():
    table = Table(
        "",
        (Column("name", numeric=False, flexible=True), Column("a"), Column("b", optional=True)),
        (("x" * 30, "1234567890", "12345"),),
    )
    assert fit(table, 60) == [(0, 30), (1, 10), (2, 5)]
    assert fit(table, 40) == [(0, 21), (1, 10), (2, 5)]
    assert fit(table, 30) == [(0, 18), (1, 10)]
    assert fit(table, 5) == [(0, 12), (1, 10), (2, 5)]  # in vain: one below the other


def test_a_path_keeps_its_end_however_wide_its_characters():
    assert cut("model.layers.3.mlp.down", 10) == "…mlp.down"
    assert cut("model.layers.3.mlp.down", 23) == "model.layers.3.mlp.down"
    assert cut("層.層層層", 6) == "…層層"  # two cells each
    assert cut("層層.down", 8) == "…down"


def test_two_graphs_are_told_apart(profile):
    """GPUs of two generations run other attention kernels: the header says whose graph it counts."""
    from dataclasses import replace

    dense = tuple(replace(c, flops={p: 2 * n for p, n in c.flops.items()}) for c in profile.costs[0])
    twin = replace(profile.graph, attention="efficient")
    new = replace(
        profile.simulations[1], graph=1, totals=replace(profile.simulations[1].totals, flops=2 * profile.flops)
    )
    graphs, costs = (profile.graph, twin), (profile.costs[0], dense)
    both = replace(profile, graphs=graphs, costs=costs, simulations=(profile.simulations[0], new))
    text = render(both, "text")
    assert (
        "kernels         flash attention on old; efficient attention on new; the counts above are of the first" in text
    )
    assert "10.79" in text
    assert "21.58" in text  # the totals table shows both counts
    assert render(both, "png").startswith(b"\x89PNG")
    assert "efficient attention" in render(both, "html")


def test_the_title_names_the_ceiling_of_the_matrix_work(profile):
    assert "── old (Maker old 16GB, 1.00 TB/s, 100.00 TFLOP/s tensor.float16)" in render(profile, "text")
    from tests.unit.report_fixture import VECTOR

    pascal = make_gpu("pascal", peak_flop_per_s={VECTOR: 10e12})
    assert "10.00 TFLOP/s vector.float32)" in render(make_profile(gpus=(pascal,)), "text")


@pytest.mark.parametrize("kind", ["text", "md", "html", "json", "csv", "trace.json"])
def test_a_profile_without_simulations_renders(kind):
    assert render(make_profile(gpus=()), kind)


def test_the_totals_fit_eighty_columns(profile):
    text = render(profile, "text", width=80)
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.defect("33")
@pytest.mark.parametrize("width", [60, 80])
def test_a_table_that_goes_on_below_says_again_what_its_rows_are(width):
    """The columns that did not fit went on in a table that repeated the first column alone: of rows that share it
    nobody could tell which is which."""
    names, phases = ["mm", "mm", "gelu"], ["fwd", "bwd", "fwd"]
    keys = [Column(name, numeric=False) for name in ("kernel", "phase")]
    columns = [*keys, *(Column(f"figure{n}") for n in range(9))]
    rows = tuple((name, phase, *["123,456.78"] * 9) for name, phase in zip(names, phases, strict=True))
    text = to_text(Document("wide", [Section("", [Table("", tuple(columns), rows)])]), width=width)
    heads = [line.split() for line in text.splitlines() if "kernel" in line]
    assert len(heads) > 1
    assert all(head[:2] == ["kernel", "phase"] for head in heads)
    assert max(map(len, text.splitlines())) <= width


@pytest.mark.parametrize("width", [40, 47, 56])
def test_an_option_stays_with_its_value_and_a_number_with_its_unit(width):
    said = "Twice the bandwidth would save 3.33 ms (--what-if 'dram_bytes_per_s*=2'), fusion more (--policy memwall)."
    text = to_text(Document("page", [Section("", [Sentence(said)])]), width=width)
    lines = text.splitlines()
    for kept in ("3.33 ms", "--what-if 'dram_bytes_per_s*=2'", "--policy memwall"):
        assert any(kept in line for line in lines)
    assert " ".join(text.split()) == f"page {said}"


def test_a_table_that_goes_on_below_repeats_the_columns_that_tell_its_rows_apart():
    """Batch 1 stands on two GPUs: batch and GPU are repeated, the kind is not, nor is a figure."""
    columns = [col.plain("batch", [1, 1]), col.names("gpu", ["a100", "h100"]), col.names("kind", ["eager", "eager"])]
    columns += [col.plain(f"figure {number}", [number, number], unit="ms") for number in range(9)]
    text = to_text(Document("page", [Section("", [col.table("", columns)])]), width=60)
    headings = [line.split() for line in text.splitlines() if line.lstrip().startswith("batch")]
    assert [heading[:3] for heading in headings] == [
        ["batch", "gpu", "kind"],
        ["batch", "gpu", "ms"],
        ["batch", "gpu", "ms"],
    ]


def test_a_phrase_wraps_between_words_where_the_page_is_narrow():
    columns = [col.phrases("lever", ["twice the bandwidth", "fsdp=optimizer"]), col.plain("saved", [1, 2], unit="ms")]
    text = to_text(Document("page", [Section("", [col.table("", columns)])]), width=24)
    assert [line.split("  ")[1].strip() for line in text.splitlines()[-3:]] == [
        "twice the", "bandwidth", "fsdp=optimizer",
    ]  # fmt: skip


def test_a_command_can_be_copied_from_any_page():
    """No break stands in it, however narrow the page, and no name in it is markup."""
    text = f"memwall profile {'a<b>' * 30}.py --gpu h100"
    page = Document("page", [], [ShellCommand("Again", text)])
    assert f"\n    {text}\n" in to_text(page, width=60)
    assert f"Again:\n\n    {text}\n" in to_markdown(page)
    assert f'<pre class="command"><code>{html.escape(text)}</code></pre>' in to_html(page)
