"""The verdict begins with the largest lever of an enumeration by the public commands, which share no plan with it."""

import itertools
import json

import pytest
import torch

import memwall
from memwall.analysis.whatif import parse_change, what_if
from memwall.hardware.lookup import load_gpu
from memwall.pipeline import resimulate
from memwall.report.pages.profile import ProfileReport
from tests.unit.places import ROOT

GPUS = ("p100-sxm2-16gb", "v100-sxm2-32gb", "t4", "a100-80gb-sxm", "h100-sxm")
WORKLOADS = (
    "profiles/bert_layer/model.py", "profiles/resnet50/model.py", "profiles/dlrm/model.py",
    *(f"tests/models/{name}.py" for name in ("transformer_encoder", "norms", "conv3d", "losses", "lstm", "moe_routing",
                                             "einsum_matmul", "pooling", "conv_grouped_depthwise")),
)  # fmt: skip
#: numbers of the GPU, and of the host
OF_GPU = (
    "dram_bytes_per_s*=2", "l2_bytes_per_s*=2", "peak_flop_per_s*=2", "latency_s/=2", "tdp_w*=2"
)  # fmt: skip
OF_HOST = "dispatch_s/=2"
DTYPES = ("tf32", "bfloat16", "float16")


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Path of a workload's record, traced once."""
    known = {}

    def of(name: str, mode: str):
        if (name, mode) not in known:
            path = tmp_path_factory.mktemp("records") / "step.json"
            memwall.profile(str(ROOT / name), gpu="h100-sxm", mode=mode).save(path)
            known[name, mode] = path
        return known[name, mode]

    return of


def enumerated(record, gpu: str, graph: bool) -> dict[str, float]:
    """Option -> the seconds that it saves, each by the function behind that option."""
    now = resimulate(record, gpu, cuda_graph=graph)
    now_s = now.simulations[0].totals.time_s
    ways = {f"--policy {policy}": resimulate(record, gpu, policy, cuda_graph=graph) for policy in ("memwall", "ideal")}
    if not graph:
        ways["--cuda-graph"] = resimulate(record, gpu, cuda_graph=True)
    saved = {option: now_s - made.simulations[0].totals.time_s for option, made in ways.items()}
    changes = [*OF_GPU, *([] if graph else [OF_HOST])]
    for change in changes:
        (told,) = what_if(now, [parse_change(change)], [load_gpu(gpu)], ["eager"])
        saved[change] = told.before.time_s - told.after.time_s
    return saved


@pytest.mark.defect("10")
@pytest.mark.parametrize(
    ("mode", "graph"),
    [("inference", False), ("training", True)]
    + [pytest.param(*other, marks=pytest.mark.whole) for other in (("inference", True), ("training", False))],
)
@pytest.mark.parametrize("name", WORKLOADS)
def test_the_first_lever_is_the_largest(saved, name, mode, graph, request):
    """The verdict named the wall under which most of the kernels stand and three numbers of the GPU. Fusion, CUDA
    graphs and the host, which often save more, were left out."""
    path = saved(name, mode)
    # one GPU of the five to a workload, mode and launch: each stands with all modes and launches
    gpus = [GPUS[(WORKLOADS.index(name) + 2 * graph + (mode == "training")) % len(GPUS)]]
    gpus = GPUS if request.config.getoption("--whole") else gpus
    made = resimulate(memwall.Profile.load(path), gpus, cuda_graph=graph)
    verdicts = json.loads(ProfileReport(made).record())["verdicts"]
    again = memwall.Profile.load(path)
    recurrent = any("rnn" in op.name for op in made.graph.ops)
    for gpu, told in zip(gpus, verdicts, strict=True):
        own = enumerated(again, gpu, graph)
        if recurrent:  # no compiler puts its steps into fewer kernels, as ideal does
            del own["--policy ideal"]
        levers = {row["options"].removeprefix("--what-if ").strip("'"): row["saved_s"] for row in told["levers"]}
        products = {option: saved_s for option, saved_s in levers.items() if option.startswith("dtype=")}
        assert {option: levers[option] for option in own} == own, gpu  # to the last digit
        assert own.keys() == levers.keys() - products.keys()
        done = [saved_s for option, saved_s in own.items() if option != "--policy ideal"]
        assert told["levers"][0]["saved_s"] == pytest.approx(max(*done, *products.values(), 0.0), abs=1e-9)
        assert recurrent or told["levers"][-1]["options"] == "--policy ideal"  # a bound, which no compiler reaches
        at_host, at_gpu = own.get(OF_HOST, 0.0), max(own[change] for change in OF_GPU)
        assert (told["bound_by"] == "host") is (at_host > at_gpu), gpu
        assert told["text"].startswith("Host-bound: ") is (at_host > at_gpu), gpu


@pytest.mark.defect("10")
def test_a_lever_of_precision_is_what_casting_gives(tmp_path):
    """No lever said what other dtypes would give, though on most GPUs they are the largest of all."""
    from memwall.analysis.levers import levers

    path = str(ROOT / "tests/models/conv3d.py")
    made, cast = (memwall.profile(path, gpu="h100-sxm", dtype=dtype) for dtype in (None, "bf16"))
    (schedule,), (narrow,) = made.simulations, cast.simulations
    (saved_s,) = (lever.saved_s for lever in levers(made, schedule) if lever.options == "--what-if dtype=bfloat16")
    assert saved_s == schedule.totals.time_s - narrow.totals.time_s


@pytest.mark.defect("10")
def test_attention_has_the_kernels_of_the_other_dtype():
    """No lever said what other dtypes would give, though on most GPUs they are the largest of all."""
    from memwall.analysis.levers import levers

    path = str(ROOT / "profiles/vit_l16/model.py")
    made, cast = (memwall.profile(path, gpu="h100-sxm", dtype=dtype) for dtype in ("fp32", "bf16"))
    (schedule,), (narrow,) = made.simulations, cast.simulations
    (saved_s,) = (lever.saved_s for lever in levers(made, schedule) if lever.options == "--what-if dtype=bfloat16")
    assert saved_s == pytest.approx(schedule.totals.time_s - narrow.totals.time_s, rel=0.01)


@pytest.mark.defect("10")
def test_half_the_latency_is_half_of_each_wait(tmp_path):
    """Nothing said what shorter waits would save."""
    gpu = load_gpu("h100-sxm")
    changed = parse_change("latency_s/=2").on(gpu)
    assert changed.launch_overhead_s == gpu.launch_overhead_s / 2
    assert changed.boost_clock_hz == 2 * gpu.boost_clock_hz
    assert changed.utilization["rows.layer_norm.latency_s"] == gpu.utilization["rows.layer_norm.latency_s"] / 2
    assert changed.utilization["rows.layer_norm.plateau"] == gpu.utilization["rows.layer_norm.plateau"]
    assert changed.peak_flop_per_s == gpu.peak_flop_per_s


@pytest.mark.defect("10")
def test_links_twice_as_fast_are_all_links_of_a_cluster():
    """A what-if on the link changed the datasheet's number alone, which no message of a cluster takes."""
    from memwall.hardware.cluster import hardware_of, joined, load_cluster

    cluster = load_cluster("dgx-h100")
    (gpu,) = joined([hardware_of(cluster)], cluster)
    changed = parse_change("link_bytes_per_s*=2").on(gpu)
    rates = [(link.bytes_per_s, changed.cluster.link[name].bytes_per_s) for name, link in cluster.link.items()]
    assert [after / before for before, after in rates] == [2.0, 2.0]


@pytest.mark.defect("10")
def test_changes_that_save_the_same_are_named_together():
    """Of several numbers that save the same, since the CPU holds what is left of the step, the sentence named one.

    Products of 1,024 x 1,024 numbers with 896 rows take longer than the CPU takes to issue them and two ops more, and
    three fifths of that is less: what is left after either change is the CPU's time."""
    layers = [(torch.nn.LayerNorm(1024), torch.nn.Linear(1024, 1024), torch.nn.GELU()) for _ in range(4)]
    net = torch.nn.Sequential(*itertools.chain(*layers))
    made = memwall.profile(net, (torch.randn(896, 1024),), gpu="h100-sxm")
    (told,) = json.loads(ProfileReport(made).record())["verdicts"]
    saved = {row["name"]: row["saved_s"] for row in told["levers"]}
    alike = [name for name, seconds in saved.items() if seconds == pytest.approx(saved["twice the FLOP/s"])]
    assert len(alike) > 1
    sentence = told["text"].partition("Compute binds: ")[2].partition(". ")[0]
    assert all(name in sentence for name in alike) and "the CPU takes" in sentence
