"""One question has one answer: ``compare``, ``serve`` and sweeps print the same quantities, names and digits."""

import json

import pytest

from memwall.analysis.quantities import answered
from tests.unit.commands import MODEL
from tests.unit.configs import SHORT_LLAMA, target_of

GPUS = ("v100", "a100", "h100")


@pytest.fixture
def mlp(tmp_path):
    (tmp_path / "mlp.py").write_text(MODEL, encoding="utf-8")
    return str(tmp_path / "mlp.py")


def rows(text, heading):
    """The rows of the table whose heading has a word, as the words of each by the first; the first such table."""
    lines = text.splitlines()
    start = next(i for i, line in enumerate(lines) if f"  {heading}" in line)
    start = next(i for i in range(start, len(lines)) if "──" in lines[i]) + 1
    end = next(i for i in range(start, len(lines)) if not lines[i].strip() or lines[i].startswith("  time:"))
    return {line.split()[0]: line.split()[1:] for line in lines[start:end]}


def test_compare_and_a_sweep_over_gpus_say_the_same(run, mlp):
    """USD 3.60 an hour are 0.1 cents a second. ``compare`` has the speed-up and its range besides."""
    price = ("--price", "h100=3.6", "--price", "a100=1.8")
    compared = json.loads(run("compare", mlp, "--gpu", *GPUS, *price, "--json").out)["entries"]
    vary = ("--vary", f"gpu={','.join(GPUS)}", "--price", "h100=3.6", "a100=1.8")
    swept = json.loads(run("sweep", mlp, *vary, "--json").out)["points"]
    names = [quantity.name for quantity in answered("profile")]
    for entry, point in zip(compared, swept, strict=True):
        assert entry["gpu"] == point["gpu"]
        entry["peak_memory"] = entry["peak_memory_bytes"]
        assert {name: entry[name] for name in names} == {name: point[name] for name in names}
    h100 = swept[2]
    assert h100["usd_per_step"] == pytest.approx(h100["time_s"] / 1000)
    assert h100["usd_per_million_samples"] == pytest.approx(1000 / h100["samples_per_s"])
    assert h100["energy_j"] == pytest.approx(h100["watts_per_gpu"] * h100["time_s"])
    assert h100["low_s"] < h100["time_s"] < h100["high_s"]
    assert swept[0]["usd_per_step"] is None  # no price of a V100

    table, other = (rows(run(*words).out, "80 % range") for words in
                    (("compare", mlp, "--gpu", *GPUS), ("sweep", mlp, "--vary", f"gpu={','.join(GPUS)}")))  # fmt: skip
    assert table.keys() == other.keys() and len(table) == 3
    for name, words in table.items():
        assert words[2].endswith("x") and [*words[:2], *words[4:]] == other[name]


def test_serve_and_a_sweep_of_servers_say_the_same(run, tmp_path):
    pytest.importorskip("transformers", reason="transformers is not installed")
    llama = target_of(tmp_path / "llama", SHORT_LLAMA)
    load, price = ("--prompt", "256", "--generate", "32"), ("--price", "h100=3", "a100=2")
    served = run("serve", llama, "--gpu", "h100", "a100", "--concurrency", "4", "32", *load, *price)
    vary = ("--vary", "gpu=h100,a100", "concurrency=4,32", "prompt=256", "generate=32", *price)
    swept = run("sweep", llama, "--of", "serve", "--best", "ttft_s", *vary)
    loads = (served.out.partition("Under load")[2], swept.out)
    own, other = ([line.split() for line in each.splitlines() if line.startswith(("  h100-sxm ", "  a100-80gb"))]
                  for each in loads)  # fmt: skip
    told = {(row[0], row[1]): row[3:] for row in own[:4]}
    assert len(told) == 4 and told == {(row[0], row[1]): row[2:] for row in other[:4]}


def test_a_condition_takes_any_name_of_a_gpu(run, mlp):
    """``4090`` is a name, no number."""
    words = ("sweep", mlp, "--vary", "gpu=a100,4090,h100", "--json", "--where")
    left = {text: json.loads(run(*words, text).out)["left"] for text in ("gpu==4090", "gpu!=h100")}
    assert [len(ids) for ids in left.values()] == [1, 2]
