"""``memwall fuse --compile``: kernels compiled for GPUs that are not there, and what it refuses."""

import json
from importlib.util import find_spec

import pytest

FLAGS = ("--policy", "memwall", "--no-capture", "-q")
needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="needs Triton")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """What is compiled once is kept for the other tests here."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def cache(monkeypatch, place):
    monkeypatch.setenv("MEMWALL_CACHE", str(place))


@pytest.mark.versions
@needs_triton
def test_a_gpu_and_an_architecture(run):
    """The one op that is no product is a ReLU over 4 x 64 floats: 1,024 bytes read and as many written."""
    result = run("fuse", "net.py", *FLAGS, "--json", "--compile", "a100", "gfx942")
    (made,) = json.loads(result.out)["compiled"]
    assert (made["gpu"], made["architectures"]) == ("a100-80gb-sxm", ["sm_80", "gfx942"])
    assert (made["dram_bytes"], made["generated_bytes"], made["coverage"]) == (2048, 2048, 1.0)
    (kernel,) = made["kernels"]
    assert (kernel["ops"], kernel["schedule"], kernel["groups"]) == (["aten.relu"], "pointwise", 1)
    assert [r["architecture"] for r in kernel["launches"]] == ["sm_80", "gfx942"]
    for launch in kernel["launches"]:
        assert (launch["status"], launch["spilled_bytes"]) == ("ok", 0)
        assert launch["registers"] > 0


@needs_triton
@pytest.mark.parametrize("words", [("net.py", "--gpu", "a100", "--compile"), ("--gpu", "a100", "--compile", "net.py")])
def test_without_a_name_it_is_the_gpu_of_the_run(run, words):
    out = run("fuse", *words, *FLAGS).out
    assert "\n── a100-80gb-sxm: kernels compiled for sm_80\n" in out
    assert "coverage  100.0 % of 2.05 kB that kernels without a matmul move" in out
    assert "\nKernels on sm_80\n" in out


@needs_triton
def test_the_page_in_markdown(run, folder):
    assert run("fuse", "net.py", "--gpu", "a100", *FLAGS, "--compile", "-o", "a.md").code == 0
    assert "## a100-80gb-sxm: kernels compiled for sm\\_80" in (folder / "a.md").read_text()


@pytest.mark.parametrize(("words", "said"), [
    (("--compile", "h10"), "no GPU named 'h10'; did you mean h100-sxm"),
    (("--compile", "sm_91"), "no architecture named 'sm_91'; did you mean sm_90"),
    (("--compile", "tpu-v4"), "no kernel can be compiled for tpu-v4"),
    (("--gpu", "tpu-v4", "--compile"), "no kernel can be compiled for tpu-v4"),
    (("--compile", "--policy", "ideal"), "--compile compiles the kernels of memwall; name it with --policy"),
])  # fmt: skip
@needs_triton
def test_what_it_refuses(run, words, said):
    result = run("fuse", "net.py", "--no-capture", "-q", *words)
    assert result.code == 2
    assert said in result.error
