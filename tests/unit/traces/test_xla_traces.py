"""Traces of XLA's profiler. The trace of a CPU in ``tests/data/xla_traces`` is real; those of GPUs and TPUs are written
here after the fields of XLA's own code (``cupti_collector.cc``, ``xplane_schema.cc``), around optimized HLO that XLA
made (``tests/data/hlo``)."""

import gzip
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from memwall.core.errors import UsageError
from memwall.traces.attained import TraceRow
from memwall.traces.command import analyse_file, is_trace
from memwall.traces.comparison import compare_traces
from memwall.traces.reading import read_trace
from memwall.traces.xla import programs
from memwall.traces.xla.space import read_space
from tests.unit.places import ROOT
from tests.unit.traces.xspace import Event, Plane, Stat, piece, write_json, write_space

HLO = ROOT / "tests/data/hlo"
CPU = ROOT / "tests/data/xla_traces"
MLP, LOOP, SHARDED = (HLO / f"{name}_h100-sxm.hlo" for name in ("mlp", "loop", "sharded"))
MLP_TPU = HLO / "mlp_tpu-v5e.hlo"
H100: dict[str, Stat] = {"gpu_device_name": "NVIDIA H100 80GB HBM3", "core_count": 132, "device_vendor": "Nvidia"}
V5E: dict[str, Stat] = {"device_type_string": "TPU v5 lite"}
DETAILS = "regs:32 static_shared:0 dynamic_shared:0 grid:128,2,1 block:256,1,1 occ_pct:100"


def kernel(op: str, start_us: float, name: str = "", module: str = "jit__lambda", dur_us: float = 6.5) -> Event:
    """A kernel of a GPU, as CUPTI's collector writes it."""
    said: dict[str, Stat] = {"kernel_details": DETAILS, "correlation_id": int(start_us)}
    said |= {"hlo_op": op, "hlo_module": module} if op else {}
    return Event(name or op.replace(".", "_"), start_us, dur_us, said)


def gpu(*events: Event, stats: dict[str, Stat] = H100, **host: Sequence[Event]) -> list[Plane]:
    """An H100 that ran these on a stream, and threads of the host."""
    planes = [Plane("/device:GPU:0", {"Stream #13(Compute)": events}, stats)]
    return [*planes, Plane("/host:CPU", host)] if host else planes


def rows(path: Path, *gpus: str, hlo: Path | None = None) -> list[TraceRow]:
    """The rows of a trace."""
    return [*analyse_file(str(path), gpus, hlo=str(hlo) if hlo else None).rows]


STEP = (kernel("gemm_fusion_dot_general.0", 10), kernel("gemm_fusion_dot", 20), kernel("triton_softmax.2", 30))


# ---- GPUs


def test_kernels_have_the_work_of_their_instructions(tmp_path: Path) -> None:
    path = write_space(tmp_path / "run.xplane.pb", *gpu(*STEP))
    with_relu, dot, softmax = rows(path, hlo=MLP)
    assert dot.flops == 2 * 4 * 1024 * 512 * 512
    assert with_relu.flops == 2 * 1024 * 512 * 2048, "a comparison with 0 is no FLOP"
    assert (dot.read_bytes, dot.write_bytes) == (2 * (1024 * 2048 + 2048 * 512), 4 * 4 * 1024 * 512)
    assert softmax.bytes == 4 * 4 * 1024 * 512 + 2 * 1024 * 512
    assert [row.op_class for row in (with_relu, dot, softmax)] == ["contraction", "contraction", "reduction"]
    assert dot.bound_s == pytest.approx(2 * 4 * 1024 * 512 * 512 / 989.4e12, rel=0.001), "its 15 MB fit in L2"
    assert [row.shapes for row in (dot, softmax)] == ["1024x4x512 4x512x512 bfloat16", "4x1024x512 float32"]


def test_a_fusion_without_a_name_is_from_where_its_last_op_is(tmp_path: Path) -> None:
    path = write_space(tmp_path / "run.xplane.pb", *gpu(STEP[2]))
    (softmax,) = rows(path, hlo=MLP)
    assert re.fullmatch(r".+\.py:\d+", softmax.source)


def test_the_gpu_is_the_one_that_the_plane_names(tmp_path: Path) -> None:
    trace = read_trace(write_space(tmp_path / "run.xplane.pb", *gpu(*STEP)))
    (device,) = trace.devices
    assert (device.name, device.sm_count, device.kernels) == ("NVIDIA H100 80GB HBM3", 132, 3)
    assert (trace.kernels[0].stream, trace.kernels[0].grid, trace.kernels[0].block) == (13, (128, 2, 1), (256, 1, 1))


def test_a_gpu_without_a_name_is_known_by_what_it_has(tmp_path: Path) -> None:
    said: dict[str, Stat] = {"device_vendor": "AMD", "core_count": 304, "memory_size": 192 * 2**30}
    (row,) = rows(write_space(tmp_path / "run.xplane.pb", *gpu(STEP[0], stats=said)))
    found = analyse_file(str(tmp_path / "run.xplane.pb"), ())
    assert (found.gpu.name, row.device) == ("mi300x", 0)


def test_programs_of_the_xspace_are_those_of_a_dump(tmp_path: Path) -> None:
    hlo = pytest.importorskip("jaxlib._hlo", reason="jax is not installed")
    proto = piece(1, hlo.hlo_module_from_text(MLP.read_text()).as_serialized_hlo_module_proto())
    held = Plane("/host:metadata", unused=[Event("jit__lambda(8)", 0, 0, kind={"Hlo Proto": proto})])
    path = write_space(tmp_path / "run.xplane.pb", *gpu(*STEP), held)
    assert [row.flops for row in rows(path)] == [row.flops for row in rows(path, hlo=MLP)]


@pytest.mark.parametrize(("limit_s", "why"), [(60.0, "cannot be read"), (0.0, "took longer than its limit")])
def test_a_damaged_program_of_an_xspace_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit_s: float, why: str
) -> None:
    pytest.importorskip("jaxlib", reason="jax is not installed")
    monkeypatch.setattr(programs, "LIMIT_S", limit_s)
    space = Plane("/host:metadata", unused=[Event("jit_f(8)", 0, 0, kind={"Hlo Proto": piece(1, b"\xff" * 40)})])
    path = write_space(tmp_path / "run.xplane.pb", *gpu(*STEP), space)
    (damaged,) = programs.programs_of(read_space(path))
    with pytest.raises(UsageError, match=rf"^its HLO in the profile [^\n]*{why}[^\n]*$"):
        damaged.text()


def test_a_json_takes_gpu_and_programs_from_beside_it(tmp_path: Path) -> None:
    write_space(tmp_path / "host.xplane.pb", *gpu())
    path = write_json(tmp_path / "host.trace.json.gz", *gpu(*STEP, stats={}))
    (tmp_path / "module_0008.jit__lambda.sm_9.0_gpu_after_optimizations.txt").write_text(MLP.read_text())
    assert [row.flops for row in rows(path)][1] == 2 * 4 * 1024 * 512 * 512


def test_without_hlo_a_kernel_has_no_figures(tmp_path: Path) -> None:
    found = analyse_file(str(write_space(tmp_path / "run.xplane.pb", *gpu(*STEP))), ())
    assert {(row.flops, row.bound_s, row.wall) for row in found.rows} == {(None, None, "unknown")}
    assert any("--xla_dump_to" in note for note in found.notes)
    assert found.matched_share == 1


def test_kernels_of_one_run_count_once(tmp_path: Path) -> None:
    split = [kernel("gemm_fusion_dot", 10, "splitk"), kernel("gemm_fusion_dot", 20, "reduce")]
    path = write_space(tmp_path / "run.xplane.pb", *gpu(*split))
    (row,) = rows(path, hlo=MLP)
    assert (len(row.kernels), row.flops) == (2, 2 * 4 * 1024 * 512 * 512)
    assert row.measured_s == pytest.approx(13e-6)


def test_the_first_kernel_again_is_another_run(tmp_path: Path) -> None:
    again = [kernel("gemm_fusion_dot", start) for start in (10, 20)]
    assert len(rows(write_space(tmp_path / "run.xplane.pb", *gpu(*again)), hlo=MLP)) == 2


def test_a_sort_runs_its_kernel_many_times(tmp_path: Path) -> None:
    passes = [kernel("sort.3", start) for start in (10, 20, 30)]
    (row,) = rows(write_space(tmp_path / "run.xplane.pb", *gpu(*passes)))
    assert len(row.kernels) == 3


def test_a_kernel_of_a_graph_is_known_by_its_own_name(tmp_path: Path) -> None:
    path = write_space(tmp_path / "run.xplane.pb", *gpu(kernel("command_buffer", 10, "gemm_fusion_dot_general_0")))
    (row,) = rows(path, hlo=MLP)
    assert row.name == "gemm_fusion_dot_general.0"


def test_two_programs_of_one_name_are_told_apart_by_their_number(tmp_path: Path) -> None:
    for number, text in ((4, LOOP), (8, MLP)):
        (tmp_path / f"module_{number:04}.jit__lambda.gpu_after_optimizations.txt").write_text(text.read_text())
    first, second = kernel("gemm_fusion_dot", 10), kernel("gemm_fusion_dot", 20)
    planes = gpu(replace(first, stats={**first.stats, "program_id": 8}), second)
    known, unknown = rows(write_space(tmp_path / "run.xplane.pb", *planes))
    assert known.flops == 2 * 4 * 1024 * 512 * 512
    assert (unknown.flops, unknown.reason[:33]) == (None, "several programs are called jit__")


def test_a_kernel_of_a_loop_has_the_work_of_an_iteration(tmp_path: Path) -> None:
    iterations = [kernel("gemm_fusion_dot", start) for start in (10, 20, 30)]
    found = rows(write_space(tmp_path / "run.xplane.pb", *gpu(*iterations)), hlo=LOOP)
    assert [row.flops for row in found] == [2 * 128 * 256 * 256] * 3


def test_an_all_reduce_has_the_message_of_its_instruction(tmp_path: Path) -> None:
    nccl = kernel("all-reduce-start", 10, "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)")
    found = analyse_file(str(write_space(tmp_path / "run.xplane.pb", *gpu(nccl))), (), hlo=str(SHARDED))
    (alike,) = found.collectives
    assert (alike.message.op, alike.message.nbytes, alike.message.ranks) == ("all_reduce", 2 * 512 * 512, 2)


def test_a_copy_has_the_bytes_that_the_profiler_states(tmp_path: Path) -> None:
    details = "kind_src:pageable kind_dst:device size:1000000 dest:0 async:1"
    copy = Event("MemcpyH2D", 10, 50, {"memcpy_details": details, "correlation_id": 1})
    (row,) = rows(write_space(tmp_path / "run.xplane.pb", *gpu(copy)))
    assert (row.link_bytes, row.wall) == (1_000_000, "link")


def test_lanes_that_are_derived_from_streams_count_once(tmp_path: Path) -> None:
    plane = Plane("/device:GPU:0", {"Stream #13(Compute)": STEP, "XLA Ops": STEP, "XLA Modules": STEP[:1]}, H100)
    assert len(read_trace(write_space(tmp_path / "run.xplane.pb", plane)).kernels) == 3


def test_allocations_are_no_work(tmp_path: Path) -> None:
    planes = gpu(*STEP, Event("MemoryAlloc", 50, 5, {"memalloc_details": "kind:device num_bytes:4096"}))
    assert len(read_trace(write_space(tmp_path / "run.xplane.pb", *planes)).kernels) == 3


def test_a_gap_is_what_the_host_did(tmp_path: Path) -> None:
    late = kernel("gemm_fusion_dot", 500)
    host = [Event("PjitFunction(mlp)", 100, 390), Event("gemm_fusion_dot", 480, 5, {"correlation_id": 500})]
    trace = read_trace(write_space(tmp_path / "run.xplane.pb", *gpu(STEP[0], late, python=host)))
    (gap,) = trace.gaps
    assert (gap.cause, gap.dur_us) == ("host: PjitFunction(mlp)", pytest.approx(483.5))


def test_a_step_is_what_the_host_marks(tmp_path: Path) -> None:
    marks = [Event("train", 100 * number, 90, {"step_num": number}) for number in (3, 4)]
    trace = read_trace(write_space(tmp_path / "run.xplane.pb", *gpu(*STEP, python=marks)))
    assert [step.name for step in trace.steps] == ["ProfilerStep#3", "ProfilerStep#4"]


# ---- TPUs

#: as a trace has it: the whole instruction, with the types of its operands
FUSION = (
    "%fusion.2 = (bf16[1024]{0:T(1024)(128)(2,1)S(1)}, bf16[1024,512]{0,1:T(8,128)(2,1)S(1)}) fusion("
    "bf16[1024,2048]{1,0:T(8,128)(2,1)S(1)} %convolution_maximum_fusion, bf16[2048,512]{1,0:T(8,128)(2,1)} %copy-done.1"
    "), kind=kOutput, calls=%fused_computation.4"
)


def instruction(name: str, start_us: float, long_name: str = "", dur_us: float = 20.5, **kind: Stat) -> Event:
    """An instruction on a TPU's lane ``XLA Ops``."""
    return Event(
        name, start_us, dur_us, {}, {"tf_op": "jit(mlp)/head/dot_general:", "source": "mlp.py:7", **kind}, long_name
    )


def tpu(*ops: Event, modules: Sequence[Event] = (), steps: Sequence[Event] = ()) -> Plane:
    """A TPU v5e that ran these."""
    return Plane("/device:TPU:0", {"Steps": steps, "XLA Modules": modules, "XLA Ops": ops}, V5E)


def test_a_tpu_states_its_work(tmp_path: Path) -> None:
    product = 2 * 1024 * 2048 * 512
    one = instruction("fusion.2", 10, FUSION, hlo_category="convolution fusion", flops=product, bytes_accessed=10**8)
    (row,) = rows(write_space(tmp_path / "run.xplane.pb", tpu(one)))
    assert (row.flops, row.read_bytes, row.write_bytes) == (product, 2 * 2048 * 512, 0), "what lies in VMEM is not read"
    assert (row.op_class, row.module, row.source) == ("contraction", "head", "mlp.py:7")
    assert row.shapes == "1024x2048 2048x512 bfloat16"
    assert row.bound_s == pytest.approx(product / 197e12, rel=0.001)


def test_an_instruction_may_be_its_own_name(tmp_path: Path) -> None:
    (row,) = rows(write_space(tmp_path / "run.xplane.pb", tpu(instruction(FUSION, 10, flops=8))))
    assert (row.name, row.read_bytes) == ("fusion.2", 2 * 2048 * 512)


def test_the_program_of_a_tpu_is_the_one_that_ran_then(tmp_path: Path) -> None:
    runs = [Event("jit_other(5)", 0, 100), Event("jit__lambda(77)", 200, 100)]
    ops = [instruction("fusion.2", start, FUSION, flops=8) for start in (10, 210)]
    path = write_space(tmp_path / "run.xplane.pb", tpu(*ops, modules=runs))
    other, own = rows(path, hlo=MLP_TPU)
    assert other.flops == 8
    assert own.flops is not None and own.flops >= 2 * 1024 * 2048 * 512


def test_a_gap_of_a_tpu_is_in_a_program_or_between_two(tmp_path: Path) -> None:
    runs = [Event("jit_f(5)", 0, 100), Event("jit_f(5)", 200, 100)]
    ops = [instruction("fusion.2", start) for start in (10, 50, 210)]
    trace = read_trace(write_space(tmp_path / "run.xplane.pb", tpu(*ops, modules=runs)))
    assert [gap.cause for gap in trace.gaps] == ["inside a program: jit_f(5)", "host: between programs"]


def test_what_lies_around_others_on_a_tpu_is_no_work(tmp_path: Path) -> None:
    ops = [instruction("while.3", 0, dur_us=100), instruction("fusion.2", 10), instruction("fusion.2", 50)]
    trace = read_trace(write_space(tmp_path / "run.xplane.pb", tpu(*ops)))
    assert [kernel.dur_us for kernel in trace.kernels] == pytest.approx([20.5, 20.5])


def test_halves_of_a_transfer_have_no_figures(tmp_path: Path) -> None:
    (row,) = rows(write_space(tmp_path / "run.xplane.pb", tpu(instruction("copy-start", 10))), hlo=MLP_TPU)
    assert row.bound_s is None and "aside" in row.reason


def test_steps_of_a_tpu_count_where_the_host_marks_none(tmp_path: Path) -> None:
    steps = [Event(str(number), 100 * number, 90) for number in range(3)]
    trace = read_trace(write_space(tmp_path / "run.xplane.pb", tpu(instruction("fusion.2", 10), steps=steps)))
    assert len(trace.steps) == 3


def test_sparse_cores_are_left_out(tmp_path: Path) -> None:
    sparse = Plane("/device:TPU:0 SparseCore 0", {"Sparse Core Ops": [Event("x", 1, 1)]})
    trace = read_trace(write_space(tmp_path / "run.xplane.pb", tpu(instruction("fusion.2", 10)), sparse))
    assert (len(trace.kernels), trace.notes[0]) == (1, "1 events of SparseCores were left out")


def test_both_formats_say_the_same(tmp_path: Path) -> None:
    ops = [instruction("fusion.2", 10, FUSION, hlo_category="convolution fusion", model_flops=1000)]
    space, text = (write(tmp_path / name, tpu(*ops)) for write, name in (
        (write_space, "a.xplane.pb"), (write_json, "b.trace.json.gz")))  # fmt: skip
    (one,), (other,) = rows(space), rows(text)
    assert (one.name, one.flops, one.shapes, one.measured_s) == (
        other.name,
        other.flops,
        other.shapes,
        other.measured_s,
    )


# ---- two of them


def test_two_traces_are_compared_by_instruction(tmp_path: Path) -> None:
    before = write_space(tmp_path / "a.xplane.pb", *gpu(*STEP))
    after = write_space(tmp_path / "b.xplane.pb", *gpu(*STEP[:2], kernel("triton_softmax.2", 30, dur_us=16.5)))
    found = compare_traces([analyse_file(str(path), ()) for path in (before, after)])
    slower = [op for op in found.ops if op.change == "slower"]
    assert [(op.name, op.difference_s) for op in slower] == [("triton_softmax.2", pytest.approx(10e-6))]


def test_a_folder_of_the_profiler_is_its_last_recording(tmp_path: Path) -> None:
    for date, ran in (("2026_01_01", STEP[:1]), ("2026_02_01", STEP)):
        folder = tmp_path / "plugins/profile" / date
        folder.mkdir(parents=True)
        write_space(folder / "host.xplane.pb", *gpu(*ran))
    assert is_trace(str(tmp_path))
    assert len(read_trace(tmp_path).kernels) == 3
    write_space(folder / "other.xplane.pb", *gpu(*STEP))
    with pytest.raises(UsageError, match="has recordings of 2 hosts: name one"):
        read_trace(tmp_path)


# ---- the real one, and what is wrong


@pytest.mark.parametrize("name", ["cpu.xplane.pb", "cpu.trace.json.gz"])
def test_a_trace_of_a_cpu_is_refused(name: str) -> None:
    assert is_trace(str(CPU / name))
    with pytest.raises(UsageError, match=r"holds no kernel of a GPU or TPU: it was recorded on a CPU"):
        read_trace(CPU / name)


def test_a_real_xspace_holds_its_programs() -> None:
    pytest.importorskip("jaxlib", reason="jax is not installed")
    from memwall.hardware.lookup import load_gpu
    from memwall.traces.xla.costs import kernel_costs
    from memwall.traces.xla.programs import programs_of
    from memwall.traces.xla.space import read_space

    programs = {program.name: program for program in programs_of(read_space(CPU / "cpu.xplane.pb"))}
    (cost,) = kernel_costs(programs["jit_layer"], load_gpu("h100-sxm")).values()
    dot = sum(flops for pipe, flops in cost.cost.flops.items() if pipe.engine == "tensor")  # type: ignore[union-attr]
    assert dot == 2 * 64 * 128 * 256
    assert cost.cost is not None and cost.cost.read_bytes == 4 * (64 * 128 + 128 * 256 + 256)


def test_an_xspace_that_is_cut_anywhere_is_refused(tmp_path: Path) -> None:
    whole = (CPU / "cpu.xplane.pb").read_bytes()
    cut = tmp_path / "cut.xplane.pb"
    for length in range(1, len(whole), 97):
        cut.write_bytes(whole[:length])
        with pytest.raises(UsageError, match=r"cut off|no named plane|holds no kernel"):
            read_trace(cut)


def test_a_packed_trace_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    cut = tmp_path / "cut.trace.json.gz"
    cut.write_bytes((CPU / "cpu.trace.json.gz").read_bytes()[:900])
    with pytest.raises(UsageError, match="cut off"):
        read_trace(cut)


@pytest.mark.parametrize(("content", "why"), [(b"", "is empty"), (b"hello\n", "no profile of XLA")])
def test_what_is_no_xspace_is_refused(tmp_path: Path, content: bytes, why: str) -> None:
    path = tmp_path / "x.xplane.pb"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=why):
        read_trace(path)


def test_nothing_that_ran_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"record one on a GPU or TPU with jax\.profiler\.trace"):
        read_trace(write_space(tmp_path / "run.xplane.pb", *gpu()))


def test_a_dump_of_another_program_is_refused(tmp_path: Path) -> None:
    path = write_space(tmp_path / "run.xplane.pb", *gpu(kernel("input_scatter_fusion", 10)))
    with pytest.raises(
        UsageError, match="has no instruction of the trace: the trace ran input_scatter_fusion of jit__"
    ):
        rows(path, hlo=MLP)


def test_a_folder_without_a_dump_is_refused(tmp_path: Path) -> None:
    path = write_space(tmp_path / "run.xplane.pb", *gpu(*STEP))
    with pytest.raises(UsageError, match="--xla_dump_to"):
        rows(path, hlo=tmp_path)


def test_a_dump_says_nothing_of_pytorch(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 1}]}))
    with pytest.raises(UsageError, match="--hlo goes with a trace of XLA"):
        rows(path, "h100-sxm", hlo=MLP)


def test_odd_values_in_a_json_are_not_recorded(tmp_path: Path) -> None:
    path = write_json(tmp_path / "a.trace.json.gz", *gpu(*STEP))
    with gzip.open(path, "rt") as file:
        found = json.load(file)
    odd = {"hlo_op": [1], "hlo_module": {}, "correlation_id": "x", "kernel_details": 7, "program_id": None}
    found["traceEvents"] += [
        {"ph": "X", "pid": 1, "tid": 1, "name": "k", "ts": "60", "dur": 1, "args": odd},
        {"ph": "X", "pid": 1, "tid": 1, "name": None, "ts": None, "dur": -1, "args": []},
        {"ph": "X", "pid": [1], "tid": {}},
    ]
    with gzip.open(path, "wt") as file:
        json.dump(found, file)
    assert len(read_trace(path).kernels) >= 4
