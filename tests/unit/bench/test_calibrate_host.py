"""A host from loops and nets: the arithmetic on seconds made up by hand, the file that is written, what is timed."""

import math
import statistics

import pytest

from memwall.bench.calibrate.host_spec import KINDS, HostMeasured, host_spec
from memwall.bench.calibrate.sampling import Benchmark, SampledQuantity, measure
from memwall.bench.clock import Clocks
from memwall.core.progress import listening
from memwall.hardware.host import Host, HostWork, load_host

#: microseconds of a call, and work where it is not 1: an op takes 1, a module 0.6, a view 0.5, a node 0.3, the CPU's
#: own product 0.3 and convolution 1.5, a compiled call 10, its parameters 4
ON_CPU = {
    "nothing": 0.1, "view": 0.6, "module": 0.7, "op": 1.1, "add": 1.2, "add.node": 1.5, "product": 1.4,
    "libraries": 0.1 + 2 * (1 + 1.5), "compiled.one": 10.1, "compiled.parameters": 14.1,
    "net.mlp": 1.6 * (10 + 10 * 0.6 + 4 * 0.5 + 4 * 0.3), "net.convolutional": 2.5 * (4 + 2 * 1.5),
}  # fmt: skip
#: an op takes 1, a module 0.6, a view 0.5, a node 0.3, a launch 5, an allocation 2, cuBLAS 6, cuDNN 9; of compiled code
#: a kernel 10, a call 20, parameters 15, a replay 60; a launch by a library 3, backward() itself 40
ON_GPU = {
    "nothing": 0.1, "view": 0.6, "module": 0.7, "op": 1.1, "add.out": 6.1, "add": 8.1, "add.node": 8.4,
    "product": 12.1, "libraries": 0.1 + 2 * (1 + 5 + 2 + 9), "compiled.one": 30.1, "compiled.several": 30.1 + 7 * 10,
    "compiled.parameters": 45.1, "compiled.replay": 60.1, "recurrent.few": 40.0, "recurrent.more": 40.0 + 16 * 3,
    "backward": 0.1 + 3 * (1 + 5) + 2 * 2 + 0.3 + 40,
    "net.mlp": 1.6 * (10 * 8 + 10 * 0.6 + 4 * 0.5 + 4 * 6), "net.convolutional": 2.5 * (4 * 8 + 2 * 9),
}  # fmt: skip
UNITS = {"libraries": 2, "compiled.several": 7, "recurrent.more": 16}
WORK = {
    "mlp": HostWork(op=10, module=10, view=4, launch=10, allocation=10, cublas=4),
    "convolutional": HostWork(op=4, launch=4, allocation=4, cudnn=2),
}
JOB = {"threads": 1, "rounds": 15, "accept_busy": False}


def quantities(us):
    return {name: SampledQuantity(name, UNITS.get(name, 1), 1e-6 * each, 0.01, 15, 0) for name, each in us.items()}


def answer(device="cpu"):
    return {"torch": "2.13.0", "device": device, "work": WORK}


def written(folder, device, us, **job) -> tuple[Host, str]:
    """The host that is read from the file that is written, and the file."""
    path = folder / "host.toml"
    path.write_text(host_spec(answer(device), quantities(us), JOB | job), encoding="utf-8")
    return load_host(path), path.read_text(encoding="utf-8")


def comments(text):
    """Key -> its comment."""
    lines = [line.partition("  # ") for line in text.splitlines() if " = " in line and line[0] != "#"]
    return {line.partition(" = ")[0].strip(): said for line, _, said in lines}


def test_a_loop_takes_what_it_has_and_nets_take_longer():
    found = HostMeasured.of("cpu", quantities(ON_CPU), WORK)
    assert {kind: round(1e6 * s, 6) for kind, s in found.loops_s.items()} == {
        "op_s": 1, "module_s": 0.6, "view_s": 0.5, "node_s": 0.3, "cublas_s": 0.3, "cudnn_s": 1.5,
        "compiled_call_s": 10, "compiled_parameters_s": 4,
    }  # fmt: skip
    assert found.factors == pytest.approx({"mlp": 1.6, "convolutional": 2.5})
    assert found.factor == pytest.approx(2.0)  # 1.6 x 2.5 = 4


def test_without_a_gpu_its_kinds_are_bare_metals_by_the_ratio_of_the_others(tmp_path):
    host, text = written(tmp_path, "cpu", ON_CPU)
    assert (host.op_s, host.module_s, host.view_s, host.node_s) == pytest.approx((2e-6, 1.2e-6, 1e-6, 0.6e-6))
    assert (host.compiled_call_s, host.compiled_parameters_s) == pytest.approx((20e-6, 8e-6))
    bare = load_host("bare-metal")
    ratios = [2e-6 / bare.op_s, 1.2e-6 / bare.module_s, 1e-6 / bare.view_s]
    ratio = math.prod(ratios) ** (1 / 3)
    scaled = (
        "backward_s",
        "launch_s",
        "allocation_s",
        "cudnn_s",
        "cublas_s",
        "compiled_kernel_s",
        "replay_s",
        "library_launch_s",
    )
    for kind in scaled:
        assert getattr(host, kind) == pytest.approx(ratio * getattr(bare, kind), rel=1e-3), kind
    assert (host.op_after, host.replay_after) == (bare.op_after, bare.replay_after)
    said = comments(text)
    assert set(said) == {"schema", *Host.__slots__}
    assert {key for key, text in said.items() if text.startswith("not measured here")} == {
        *scaled, "op_after", "replay_after"
    }  # fmt: skip
    assert said["op_s"] == "measured here: 1e-06 in a loop, times 2; 15 samples within 1.0%"
    assert said["measured"] == f"not {', '.join(sorted(scaled, key=[*Host.__slots__].index))}"
    assert "nets take 2 times what their calls take in loops (mlp 1.60, convolutional 2.50)" in text
    assert host.is_assumed
    # the deviation of two logarithms is their distance over the root of 2; that of the ratios adds up in squares
    off = math.hypot(math.log(2.5 / 1.6) / 2**0.5, statistics.stdev(map(math.log, ratios)))
    assert host.high == pytest.approx(math.exp(1.2816 * off), rel=1e-3)
    assert host.low == pytest.approx(1 / host.high, rel=2e-3)


def test_on_a_gpu_everything_is_measured_and_nothing_is_assumed(tmp_path):
    host, text = written(tmp_path, "cuda", ON_GPU)
    us = {"op": 1, "module": 0.6, "view": 0.5, "node": 0.3, "launch": 5, "allocation": 2, "cudnn": 9, "cublas": 6,
          "compiled_call": 20, "compiled_parameters": 15, "compiled_kernel": 10, "replay": 60,
          "library_launch": 3, "backward": 40}  # fmt: skip
    assert {kind: 1e6 * getattr(host, f"{kind}_s") / 2 for kind in us} == pytest.approx(us)  # nets take twice as long
    assert host.measured and host.varies and not host.is_assumed
    assert host.high == pytest.approx(math.exp(1.2816 * math.log(2.5 / 1.6) / 2**0.5), rel=1e-3)  # 1.498
    assert [key for key, said in comments(text).items() if said.startswith("not measured")] == [
        "op_after", "replay_after"
    ]  # fmt: skip


def test_without_a_compiler_compiled_code_is_scaled_too(tmp_path):
    us = {name: each for name, each in ON_GPU.items() if not name.startswith("compiled")}
    host, text = written(tmp_path, "cuda", us)
    ratio = host.compiled_call_s / load_host("bare-metal").compiled_call_s
    assert host.replay_s == pytest.approx(ratio * load_host("bare-metal").replay_s, rel=1e-3)
    assert comments(text)["replay_s"].startswith("not measured here")
    assert host.launch_s == pytest.approx(10e-6) and host.is_assumed


def test_noise_makes_no_negative_time(tmp_path):
    host, _ = written(tmp_path, "cuda", ON_GPU | {"add": 6.0})
    assert host.allocation_s == 0.0


def test_other_processes_are_stated(tmp_path):
    assert "--accept-busy" in written(tmp_path, "cpu", ON_CPU, accept_busy=True)[1]
    assert "--accept-busy" not in written(tmp_path, "cpu", ON_CPU)[1]


def test_a_sample_of_one_call_begins_on_an_idle_device():
    order = []
    ticks = iter(range(10**6))
    clock = lambda: next(ticks) * 1.0  # noqa: E731
    lone = Benchmark("lone", 1.0, lambda: order.append("run"), calls=1)
    clocks = Clocks(clock, clock, clock)
    measure([lone], 3, accept_busy=True, clocks=clocks, wait=lambda: order.append("wait"))
    assert order == 3 * ["run", "wait", "run"]  # warm, idle, timed


def test_each_round_is_told_before_it_begins():
    ticks = iter(range(10**6))
    clock = lambda: next(ticks) * 1.0  # noqa: E731
    lines = []
    with listening(lines.append):
        measure([Benchmark("lone", 1.0, int, calls=1)], 3, accept_busy=True, clocks=Clocks(clock, clock, clock))
    assert lines[1:] == [f"measuring this machine, rounds, {done} of 3" for done in range(3)]


@pytest.mark.slow
def test_there_is_a_loop_for_every_kind():
    pytest.importorskip("torch")
    from memwall.bench.calibrate import host_benchmarks as host

    timed = [*host.loops("cpu"), *host.compiled("cpu")]
    loops = {bench.name for bench in timed}
    for loop, besides in KINDS["cpu"].values():
        assert {loop, *besides} <= loops | KINDS["cpu"].keys()
    on_gpu = loops | {"compiled.several", "compiled.replay", "recurrent.few", "recurrent.more"} | KINDS["cuda"].keys()
    assert all({loop, *besides} <= on_gpu for loop, besides in KINDS["cuda"].values())
    assert {f"{kind}_s" for kind in HostWork._fields} | {"library_launch_s"} == KINDS["cuda"].keys()
    for bench in timed:
        if "compiled" not in bench.name:
            bench.run()


def test_what_the_nets_ask_for_and_that_they_run_on_nothing():
    """Four times linear, norm, GELU: a view and a product each; five convolutions, five batch norms, five ReLUs, two
    sums, a pool and a linear layer; two layers of eight products, each with two views or more."""
    pytest.importorskip("torch")
    from memwall.bench.calibrate import host_benchmarks as host

    nets = host.nets()
    work = host.net_work(nets)
    mlp, net, transformer = (work[name] for name in ("mlp", "convolutional", "transformer"))
    assert (mlp.op, mlp.module, mlp.view, mlp.cublas, mlp.cudnn) == (12, 12, 4, 4, 0)
    assert (net.op, net.cudnn, net.cublas) == (19, 10, 1)
    assert transformer.cublas == 2 * 6 and transformer.view >= 2 * transformer.cublas
    for bench in host.net_benchmarks(nets, "cpu"):
        assert bench.run().numel() == 0
    more, few = (host._library_launches(host.nn.LSTM(256, 256), host.torch.ones(n, 1, 256)) for n in (12, 4))
    assert more > few  # no persistent kernel: launches grow with the steps
