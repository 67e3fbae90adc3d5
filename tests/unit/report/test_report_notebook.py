"""What a notebook shows of each result: its page, as a fragment that touches nothing outside of it."""

import re

import pytest

import memwall
from memwall.bench.accuracy.reading import score_files
from memwall.fusing.run import fused
from memwall.gate.result import GateResult, Problem
from memwall.report.notebook import result_fragment
from memwall.serving.run import serve
from memwall.training.run import parallel
from tests.unit.configs import SHORT_LLAMA, target_of
from tests.unit.measured_fixture import make_measured
from tests.unit.report_fixture import HOSTILE, NEW, OLD, make_profile


def shown(result) -> str:
    """The fragment; it is one element, and without a script, an address or an unescaped name."""
    text = result._repr_html_()
    assert text.startswith('<div class="memwall">') and text.endswith("</div>")
    assert "<script" not in text and "src=" not in text and "http" not in text.replace("http://www.w3.org/2000/svg", "")
    return text


def test_fusion_shows_its_policies_and_a_picture():
    text = shown(fused(make_profile(gpus=(OLD, NEW)), ("eager", "memwall")))
    assert "tiny: what fusion wins" in text and "<svg" in text and HOSTILE not in text


def test_collectives_show_a_table_by_size():
    text = shown(memwall.comm("dgx-h100", least=1024, most=2048))
    assert "Collectives between 8 GPUs of dgx-h100" in text and text.count("<tr>") == 3  # a head and two sizes


def test_a_gate_shows_its_verdict():
    assert "FAIL" in shown(GateResult((), (Problem("net", "net.py", "fail", "cannot be traced: <b>"),)))


def test_a_measured_profile_shows_what_was_measured():
    text = shown(make_measured(("eager",)))
    assert "<h2>Measured on Maker old 16GB, modeled as old" in text
    assert "Measured on" not in shown(make_profile())


def test_scores_show_their_tables(tmp_path):
    make_measured(("eager",)).save(tmp_path / "measured.json")
    text = shown(score_files([tmp_path / "measured.json"]))
    assert "Modeled vs. measured time of kernels" in text and "By op class and dtype" in text


@pytest.mark.slow
def test_servers_and_their_search_show_their_answers(tmp_path):
    pytest.importorskip("transformers", reason="transformers is not installed")
    target = target_of(tmp_path / "llama", SHORT_LLAMA)
    load = {"prompt": 32, "generate": 8, "concurrency": 2}
    assert ": serving" in shown(serve(target, gpu="h100", **load))
    found = memwall.search(target, gpu="h100", gpus=1, **load)
    assert "The cheapest: 1 engine of 1 h100-sxm" in shown(found)


@pytest.mark.slow
def test_a_training_step_and_its_search_show_their_answers(tmp_path):
    pytest.importorskip("transformers", reason="transformers is not installed")
    target = target_of(tmp_path / "llama", SHORT_LLAMA)
    text = shown(parallel(target, layout="dp=2", batch=1, seq=32))
    assert re.search(r"Where the time goes", text)
    found = memwall.search_layouts(target, gpus=2, global_batch=2, seq=32)
    assert "The fastest: " in shown(found)


def test_a_gpu_shows_its_numbers():
    assert "NVIDIA H100 SXM5 80GB" in shown(memwall.load_gpu("h100"))


def test_a_result_is_one_short_line_at_a_prompt():
    """Servers had 780,000 characters there, as their steps hold all kernels."""
    assert repr(memwall.comm("dgx-h100", least=1024, most=2048)) == "<memwall.CollectiveTimes: 2 rows>"
    for result in (memwall.load_gpu("h100"), memwall.bound("softmax(f16[64,64], -1)", gpu="h100", policy="eager")):
        assert len(repr(result)) < 600 and "\n" not in repr(result)


def test_a_result_without_a_page_is_a_mistake():
    with pytest.raises(KeyError, match="object"):
        result_fragment(object())
