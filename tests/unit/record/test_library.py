"""The library as people import it: its public names, their docstrings and types, and what a notebook shows."""

import dataclasses
import inspect
import re
import subprocess
import sys

import pytest

import memwall
from memwall.core.errors import UsageError
from memwall.report import render
from memwall.report.pages.profile import KERNEL_COLUMNS
from memwall.sweeping.compare import compare_gpus, compare_profile
from tests.unit.html_pages import Page
from tests.unit.places import CHROMIUM, ROOT
from tests.unit.processes import HANGS_S
from tests.unit.report_fixture import NEW, OLD, make_profile

pandas = pytest.importorskip("pandas", reason="pandas is not installed")

MM = 2**31  # FLOP of one product of the fixture: 2 * 1024^3


def test_nothing_else_is_public():
    names = {name for name in dir(memwall) if not (name.startswith("__") and name != "__version__")}
    assert names == set(memwall.__all__)
    starred: dict[str, object] = {}
    exec("from memwall import *", starred)
    assert set(starred) - {"__builtins__"} == set(memwall.__all__)


def public_functions():
    """(name, function): the public functions, and the public methods and properties of the public classes."""
    from memwall import pipeline as tracing

    yield "trace", tracing.trace
    for name in memwall.__all__:
        thing = getattr(memwall, name)
        if inspect.isfunction(thing):
            yield name, thing
        if name == "trace":
            thing = tracing.Trace
        if inspect.isclass(thing):
            for key, member in vars(thing).items():
                function = getattr(member, "fget", None) or getattr(member, "func", None) or member
                function = getattr(function, "__func__", function)  # a classmethod
                if not key.startswith("_") and inspect.isfunction(function):
                    yield f"{name}.{key}", function


FUNCTIONS = dict(public_functions())


def test_every_public_class_says_what_it_is():
    for name in memwall.__all__:
        thing = getattr(memwall, name)
        if inspect.isclass(thing):
            generated = dataclasses.is_dataclass(thing) and (thing.__doc__ or "").startswith(f"{thing.__name__}(")
            assert thing.__doc__ and not generated, f"memwall.{name} has no docstring"


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_public_function_is_documented_and_typed(name):
    function = FUNCTIONS[name]
    text = inspect.getdoc(function)
    assert text, f"memwall.{name} has no docstring"
    assert "return" in function.__annotations__, f"memwall.{name} says not what it returns"
    parameters = [p for p in inspect.signature(function).parameters if p not in ("self", "cls")]
    missing = [p for p in parameters if p not in function.__annotations__]
    assert not missing, f"memwall.{name}: {missing} have no type"
    if "." not in name or name.startswith("trace."):  # of the functions each argument is explained
        untold = [p for p in parameters if not re.search(rf"\b{p}\b", text)]
        assert not untold, f"memwall.{name} does not explain {untold}"
    source = inspect.getsource(function)
    if "raise UsageError" in source:
        assert "Raises:" in text, f"memwall.{name} does not say what it raises"


SCRIPT = """
import memwall
from torch import nn, ones


def main() -> float:
    record = memwall.profile(nn.Linear(8, 8), (ones(2, 8),), gpu=["h100", "a100"])
    with memwall.trace(name="step") as t:
        nn.Linear(8, 8)(ones(2, 8))
    reveal_type(record)
    reveal_type(t.profile(gpu="h100"))
    reveal_type(memwall.compare(record, gpu=["a100", "v100"]))
    reveal_type(memwall.load_gpu("h100"))
    reveal_type(record.to_pandas())
    reveal_type(record.roofline())
    reveal_type(memwall.Profile.load("x.json"))
    return record.simulations[0].totals.time_s


memwall.profile(3, gpux="h100")
memwall.nonsense
memwall.trace().profile(gpu=3)
wrong: int = memwall.load_gpu("h100")
"""

CONFIG = """
[mypy]
strict = true
[mypy-memwall.*]
ignore_errors = true
[mypy-torch.*,pandas.*,matplotlib.*,transformers.*,triton.*,pyarrow.*,pynvml.*,numpy.*,scipy.*]
follow_imports = skip
ignore_missing_imports = true
"""


def test_a_users_script_is_checked_through_the_lazy_names(tmp_path, request):
    """mypy --strict knows the types of what memwall returns, and finds the four mistakes at the end."""
    pytest.importorskip("mypy", reason="mypy is not installed")
    (tmp_path / "script.py").write_text(SCRIPT, encoding="utf-8")
    (tmp_path / "mypy.ini").write_text(CONFIG, encoding="utf-8")
    cache = getattr(
        request.config, "cache", None
    )  # what mypy knows of the package, from one run of the tests to the next
    kept = cache.mkdir("mypy") if cache else tmp_path / "kept"
    command = [sys.executable, "-m", "mypy", "--config-file", "mypy.ini", "--cache-dir", kept, "script.py"]
    done = subprocess.run(
        command, cwd=tmp_path, env={"MYPYPATH": str(ROOT), "PATH": ""}, capture_output=True, text=True
    )
    revealed = re.findall(r'Revealed type is "(?:builtins\.)?([\w.]+)', done.stdout)
    assert revealed[:4] == [
        "memwall.record.profile.Profile", "memwall.record.profile.Profile", "memwall.sweeping.comparison.Comparison",
        "memwall.hardware.gpu.Gpu",
    ], done.stdout + done.stderr  # fmt: skip
    assert revealed[-1] == "memwall.record.profile.Profile"
    errors = re.findall(r"^script\.py:(\d+): error: .*\[([\w-]+)\]", done.stdout, re.MULTILINE)
    assert [kind for _, kind in errors] == ["call-arg", "attr-defined", "arg-type", "assignment"], done.stdout


@pytest.fixture(scope="module")
def profile():
    return make_profile()


def test_a_row_is_a_kernel_with_the_columns_of_the_csv(profile):
    import io

    frame = profile.to_pandas()
    assert list(frame.columns) == [*KERNEL_COLUMNS, "launches"]
    assert len(frame) == 2 * 12  # two GPUs, twelve ops
    written = pandas.read_csv(io.StringIO(render(profile, "csv")))
    assert frame["time_s"].tolist() == written["time_s"].tolist()
    for column in ("flops", "read_bytes", "write_bytes", "launches", "id"):
        assert frame[column].dtype == "int64"
    assert frame["modeled"].dtype == bool
    old = frame[frame["gpu"] == "old"]
    assert old["launches"].sum() == profile.simulations[0].totals.kernels == 13  # the optimizer's step is two
    assert old["time_s"].sum() == pytest.approx(profile.simulations[0].totals.time_s)
    assert old[old["class"] == "contraction"]["flops"].tolist() == [MM] * 4


def test_equal_kernels_are_one_row(profile):
    frame = profile.to_pandas(by="op")
    forward = frame[(frame["gpu"] == "old") & (frame["name"] == "aten.mm") & (frame["phase"] == "forward")]
    assert forward[["count", "flops", "module"]].values.tolist() == [[2, 2 * MM, "blocks.*.proj"]]
    assert "class" in frame.columns and "op_class" not in frame.columns


@pytest.mark.parametrize("by", ["module", "class", "phase"])
def test_sums_are_those_of_the_whole(profile, by):
    frame = profile.to_pandas(by=by)
    assert list(frame.columns[:3]) == ["gpu", "policy", by]
    for schedule in profile.simulations:
        rows = frame[frame["gpu"] == schedule.gpu.name]
        totals = schedule.totals
        assert rows["flops"].sum() == totals.flops
        assert rows["dram_bytes"].sum() == totals.dram_bytes
        assert rows["launches"].sum() == totals.kernels
        assert rows["time_s"].sum() == pytest.approx(totals.time_s)
        assert rows["time_share"].sum() == pytest.approx(1)


def test_every_module_has_its_row_however_many_there_are():
    profile = make_profile(gpus=(OLD,), blocks=2)
    assert set(profile.to_pandas(by="module")["module"]) >= {"blocks.*.proj", "blocks.*.act", "blocks.*.norm", "attn"}


def test_a_wrong_grouping_says_which_there_are(profile):
    with pytest.raises(UsageError, match="choose one of kernel, op, module, class, phase"):
        profile.to_pandas(by="kernels")


def test_a_profile_on_no_gpu_is_an_empty_frame(profile):
    frame = profile.with_simulations(()).to_pandas()
    assert list(frame.columns) == [*KERNEL_COLUMNS, "launches"]
    assert frame.empty


def test_a_comparison_is_a_row_for_each_entry(profile):
    comparison = compare_profile(profile, [OLD, NEW])
    frame = comparison.to_pandas()
    assert set(frame.columns) == set(render(comparison, "csv").splitlines()[0].split(","))
    assert frame["gpu"].tolist() == ["old", "new"]
    shares = frame[["wall_shares.compute", "wall_shares.bandwidth", "wall_shares.overhead"]].sum(axis=1)
    assert shares.tolist() == pytest.approx([1, 1])
    machines = compare_gpus([OLD, NEW]).to_pandas()
    assert machines["dram_bytes_per_s"].tolist() == [1e12, 2e12]


def test_the_roofline_is_a_figure_with_a_circle_for_each_kind_of_kernel(profile):
    figure = pytest.importorskip("matplotlib.figure", reason="matplotlib is not installed")
    drawn = profile.roofline()
    assert isinstance(drawn, figure.Figure)
    values, axes = drawn.axes
    assert values.get_xscale() == values.get_yscale() == "log"
    title = axes.texts[0].get_text()
    assert "tiny" in title and "old" in title, title
    # seven kinds have FLOPs: two products, GELU, norm, attention, optimizer and the one with the odd name
    rings = [patch for patch in axes.patches if type(patch).__name__ == "Circle"]
    assert len(rings) >= 7
    assert drawn._repr_png_().startswith(b"\x89PNG")


def test_the_roofline_is_written_as_asked_and_twice_the_same(profile, tmp_path):
    for kind, magic in (("png", b"\x89PNG"), ("svg", b"<svg"), ("pdf", b"%PDF")):
        first, second = tmp_path / f"a.{kind}", tmp_path / f"b.{kind}"
        profile.roofline(first, gpu="old")
        profile.roofline(str(second), gpu="old", policy="eager")
        assert first.read_bytes().startswith(magic)
        assert first.read_bytes() == second.read_bytes()


def test_a_wrong_roofline_writes_nothing(profile, tmp_path):
    with pytest.raises(UsageError, match=r"\.png, \.svg, \.pdf"):
        profile.roofline(tmp_path / "a.txt")
    with pytest.raises(UsageError, match="no simulation on ideal to draw; it has old eager, new eager"):
        profile.roofline(tmp_path / "a.png", policy="ideal")
    with pytest.raises(UsageError, match="no simulation on h100-sxm"):
        profile.roofline(tmp_path / "a.png", gpu="h100")
    with pytest.raises(UsageError, match="it has none"):
        profile.with_simulations(()).roofline()
    with pytest.raises(UsageError, match="cannot write"):
        profile.roofline(tmp_path / "missing" / "a.png")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(params=["profile", "comparison", "machines", "no GPU", "eight"])
def fragment(request, profile):
    things = {
        "profile": lambda: profile,
        "comparison": lambda: compare_profile(profile, [OLD, NEW]),
        "machines": lambda: compare_gpus([OLD, NEW]),
        "no GPU": lambda: profile.with_simulations(()),
        "eight": lambda: make_profile((OLD, NEW) * 5, blocks=60),
    }
    return things[request.param]()._repr_html_()


def test_a_fragment_is_small_closed_inert_and_alone(fragment):
    page = Page(fragment)
    assert len(fragment) < 80_000  # each picture stands in it for wide and for narrow pages
    tags = {tag for tag, _ in page.tags}
    assert not tags & {"script", "link", "iframe", "img", "html", "body", "object", "form"}
    for _, attributes in page.tags:
        assert not [name for name in attributes if name.startswith("on") or name in ("src", "href", "id")]
    assert not re.search(r"url\(|@import|https?:", fragment)
    (style,) = re.findall(r"<style>(.*?)</style>", fragment, re.DOTALL)
    style = re.sub(r"@media[^{]*\{((?:[^{}]+\{[^}]*\})*)\s*\}", r"\1", style)
    for rule in re.findall(r"([^{}]+)\{[^}]*\}", style):
        for selector in rule.split(","):
            assert selector.strip().startswith(".memwall"), selector


def test_a_profile_shows_totals_walls_verdict_and_kernels(profile):
    page = Page(profile._repr_html_())
    assert "tiny, training, float16, adamw" in page.text
    assert "Compute binds: twice the FLOP/s would save 53.69 us. 59.9 % of the time" in page.text
    for name in ("old", "new", "native_layer_norm", "blocks.*.proj", "80 % range"):
        assert name in page.text
    assert "mylib::<script>alert(1)</script>" in page.text  # as text
    assert [attributes.get("open", "no") for tag, attributes in page.tags if tag == "details"] == [None, "no"]
    assert "<title>compute 59.9 %</title>" in profile._repr_html_()


def test_the_plain_text_beside_the_html_is_one_line(profile):
    """It was every field of every op: 44 MB for 30,000 kernels on two GPUs, in each notebook that showed them."""
    text = repr(profile)
    assert len(text) < 300 and "\n" not in text
    assert text.startswith(f"<memwall.Profile of {profile.workload.name}: ")
    assert all(f"{s.gpu.name} {s.policy}" in text for s in profile.simulations)
    assert "no GPU" in repr(profile.with_simulations(()))
    named = dataclasses.replace(profile.workload, name="two\nlines")
    assert "of two lines: " in repr(dataclasses.replace(profile, workload=named))


def test_names_are_escaped():
    text = make_profile(name="</style><script>alert(1)</script>")._repr_html_()
    assert "<script" not in text
    assert "&lt;/style&gt;&lt;script&gt;alert(1)&lt;/script&gt;" in text


def test_many_simulations_are_cut_and_said_so():
    text = Page(make_profile((OLD, NEW) * 5)._repr_html_()).text
    assert "2 more simulations are in the table alone" in text


def test_a_comparison_shows_the_bars_and_the_tables(profile):
    page = Page(compare_profile(profile, [OLD, NEW])._repr_html_())
    assert "compare: tiny" in page.text
    assert "187.48 us" in page.text and "2.96x" in page.text
    bars = [float(attributes["width"]) for tag, attributes in page.tags if tag == "rect"]
    assert sum(bars[:4]) / sum(bars[4:8]) == pytest.approx(2.96, abs=0.01)  # as long as the times are


@pytest.mark.browser
def test_a_browser_leaves_the_page_around_it_alone(profile, tmp_path):
    """A paragraph and a table beside the fragment look as they do without it."""
    if CHROMIUM is None:
        pytest.skip("needs a headless Chromium (apt-get install chromium)")
    script = (
        "<script>const s=e=>{const c=getComputedStyle(e);return [c.font,c.margin,c.display,c.color].join()};"
        "document.title='styles:'+s(document.querySelector('#p'))+s(document.querySelector('#td'))"
        "+s(document.querySelector('#s'))+' kernels:'+document.querySelectorAll('.memwall tbody tr').length</script>"
    )
    around = "<!doctype html><p id=p>x<table><tr><td id=td class=n>y</table><details><summary id=s>z</summary>"
    around += "</details>"
    titles = []
    for name, part in (("with", profile._repr_html_()), ("without", "")):
        (tmp_path / f"{name}.html").write_text(f"{around}{part}{script}", encoding="utf-8")
        done = subprocess.run(
            [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-dev-shm-usage",
             f"--user-data-dir={tmp_path}/user", "--dump-dom", f"file://{tmp_path}/{name}.html"],
            capture_output=True, text=True, timeout=HANGS_S, check=True,
        )  # fmt: skip
        titles.append(re.search(r"<title>styles:(.*) kernels:(\d+)</title>", done.stdout).groups())
    (styled, rows), (plain, none) = titles
    assert styled == plain
    assert (int(rows), int(none)) == (2 + 8 + 8, 0)  # totals of two GPUs, eight kinds of kernel on each


def test_what_draws_is_imported_when_it_is_asked_for(tmp_path):
    make_profile().save(tmp_path / "p.json")
    heavy = "[m for m in ('pandas', 'matplotlib', 'torch', 'memwall.report') if m in sys.modules]"
    load = f"import sys, memwall; p = memwall.Profile.load({str(tmp_path / 'p.json')!r})"
    code = f"{load}; a = {heavy}; p.to_pandas(); p.roofline(); p._repr_html_(); print(a, {heavy})"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    before, _, after = done.stdout.partition("]")
    assert before == "["
    assert "memwall.report" in after and "torch" not in after
