"""Generated kernels in Triton's interpreter against float64: all of the reference workloads', and those of odd shapes.

The interpreter runs in processes of its own, see :mod:`tests.unit.generated_child`.
"""

import pytest

from tests.unit import interpreted
from tests.unit.odd_cases import CASES
from tests.unit.small_workloads import MODES, WORKLOADS

pytestmark = interpreted.needs_triton

#: ops that no kernel is generated for, nor for the ops that share a group with them, and why
LEFT = {
    "convolution": "the vendor's library", "convolution_backward": "the vendor's library",
    "_scaled_dot_product_flash_attention": "the vendor's library",
    "_scaled_dot_product_flash_attention_backward": "the vendor's library",
    "_grouped_mm": "products of ragged rows", "topk": "sorts", "sort": "sorts", "tril_indices": "a triangle of indices",
    "_embedding_bag": "bags of any length", "_embedding_bag_backward": "bags of any length",
    "sparse.add_.Tensor": "a sparse update", "scatter.src": "written in part, and read by the next op",
}  # fmt: skip
#: workloads whose kernels run without --whole
QUICK = ("bert_layer", "dlrm", "llama3_8b", "mixtral_8x7b")
#: (workload, mode) → groups whose path at full size cannot be asked for where they are tiny
OTHER_PATHS = {("unet", "training"): 2, ("gpt2_xl", "training"): 2}


@pytest.mark.parametrize("mode", MODES)
def test_every_kernel_of_a_reference_workload_is_right(mode, tmp_path, request, forks):
    """All kinds that they have together with --whole; else every eighth of the kinds of ``QUICK`` workloads, as the
    interpreter takes seconds for a kernel, and the plan of a UNet at full size as long as all others."""
    every, names = (1, tuple(WORKLOADS)) if request.config.getoption("--whole") else (8, QUICK)
    results, signal = interpreted.lines(forks, tmp_path, "workloads", mode, every, *names)
    assert not signal, f"killed by signal {signal} after {len(results)} kernels"
    assert [r for r in results if r["status"] not in ("ok", "not generated")] == []
    left = [r["ops"] for r in results if r["status"] == "not generated"]
    assert [ops for ops in left if not LEFT.keys() & ops] == []
    done = [r for r in results if r["status"] == "ok"]
    assert len(done) >= (60 if every == 1 else 3)
    if every == 1:
        assert {r["workload"] for r in done} == set(WORKLOADS)
    elsewhere = [r for r in done if r["schedule"] != r["full"]]
    for workload in WORKLOADS:
        assert sum(r["workload"] == workload for r in elsewhere) <= OTHER_PATHS.get((workload, mode), 0), elsewhere


@pytest.fixture(scope="module")
def odd(request, tmp_path_factory, forks):
    """The results of the cases that are selected, of one process."""
    asked = [item.callspec.params["name"] for item in request.session.items if "odd" in item.fixturenames]
    return interpreted.by_name(forks, "cases", asked, tmp_path_factory.mktemp("odd"))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", CASES)
def test_a_kernel_on_odd_shapes_is_right_and_takes_its_path(name, odd):
    assert [r for r in odd[name] if r["status"] != "ok"] == []
    assert tuple(dict.fromkeys(r["schedule"] for r in odd[name])) == CASES[name].schedules
