"""The policy xla from the command line, on a dump of HLO, which needs neither JAX nor a compiler."""

from pathlib import Path

import pytest

from tests.unit.places import ROOT

DUMP = ROOT / "tests" / "data" / "hlo" / "mlp_h100-sxm.hlo"


def test_a_dump_is_profiled_by_its_own_kernels(run, folder):
    done = run("profile", DUMP, "--gpu", "h100-sxm", "--policy", "xla", "memwall")
    assert done.code == 0, done.err
    line = next(line.split() for line in done.out.splitlines() if line.split()[:1] == ["xla"])
    assert line[4] == "3"  # launches, which stand behind time, speed-up and share of what ideal wins
    assert "optimized program: policy xla has its kernels" in " ".join(done.out.split())


@pytest.mark.parametrize(("policy", "said"), [("xla", True), ("memwall", False)])
def test_a_page_says_that_the_peak_of_xla_from_text_is_simulated(run, folder, policy, said):
    done = run("profile", DUMP, "--gpu", "h100-sxm", "--policy", policy)
    assert ("which does not say where XLA's buffers lie" in " ".join(done.out.split())) == said


def test_a_record_of_it_next_to_another_policy_is_shown_again(run, folder):
    made = run("profile", DUMP, "--gpu", "h100-sxm", "--policy", "memwall", "xla", "-o", "mlp.json")
    again = run("report", "mlp.json")
    assert again.code == 0 and "a record does not hold the plan of xla" in " ".join(again.out.split())
    pages = [result.out.partition("  workload  ")[2] for result in (made, again)]  # what comes before has the levers
    assert pages[0] == pages[1] != ""


def test_a_record_of_it_cannot_be_compiled_for_another_gpu(run, folder):
    assert run("profile", DUMP, "--gpu", "h100-sxm", "--policy", "xla", "-o", "mlp.json").code == 0
    done = run("profile", "mlp.json", "--gpu", "a100-80gb-sxm", "--policy", "xla")
    assert "policy xla compiles the program itself, and the record of mlp_h100-sxm has none" in done.error


@pytest.mark.parametrize(
    ("source", "name", "gpu", "made"),
    [
        ("mlp_tpu-v5e.hlo", "mlp.hlo", "h100-sxm", "a TPU"),
        ("mlp_h100-sxm.hlo", "mlp.hlo", "tpu-v5e", "a GPU"),
        ("mlp_h100-sxm.hlo", "module_0001.jit_f.cpu_after_optimizations.txt", "h100-sxm", "a CPU"),
    ],
)
def test_what_was_optimized_for_another_kind_of_device_is_refused(run, folder, source, name, gpu, made):
    Path(name).write_text((DUMP.parent / source).read_text(encoding="utf-8"), encoding="utf-8")
    assert f"{name} was optimized for {made}, and" in run("profile", name, "--gpu", gpu, "--policy", "xla").error


def test_what_is_cut_off_is_one_line(run, folder):
    Path("cut.hlo").write_text(DUMP.read_text(encoding="utf-8")[:3000], encoding="utf-8")
    assert "cut.hlo, line " in run("profile", "cut.hlo", "--gpu", "h100-sxm", "--policy", "xla").error


def test_a_gpu_that_xla_does_not_compile_for_prices_a_dump_still(run, folder):
    assert run("profile", DUMP, "--gpu", "mi300x", "--policy", "xla").code == 0
