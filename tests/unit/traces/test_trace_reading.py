"""Reading profiler traces: linking, GPU time, devices. Expected values are counted by hand, or by brute force."""

import gzip
import json
import random
from pathlib import Path
from typing import Any

import pytest

from memwall.core.errors import UsageError
from memwall.core.progress import listening
from memwall.traces import stream
from memwall.traces.fields import is_communication, user_frame
from memwall.traces.reading import gpu_name, read_trace
from tests.unit.traces_fixture import annotation, call, frame, kernel, op, real_trace, real_traces, write

TRACES = real_traces()
H100 = {
    "id": 0, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 85018279936, "computeMajor": 9, "computeMinor": 0,
    "numSms": 132,
}  # fmt: skip

#: linear(addmm) on thread 1 and add on thread 2; External ids are swapped, as five of the real traces have them
SMALL = [
    frame("nn.Module: Net_0", 0, 100),
    frame("net.py(7): forward", 1, 98),
    frame("nn.Module: Linear_0", 2, 60),
    frame("torch/nn/modules/linear.py(124): forward", 3, 58),
    op("aten::linear", 5, 50, External__id=1, Input__Dims=[[4, 8], [16, 8]], Input__type=["float", "float"]),
    op(
        "aten::addmm", 10, 40, External__id=2, Input__Dims=[[16], [4, 8], [8, 16], [], []],
        Input__type=["float", "float", "float", "Scalar", "Scalar"], Input__Strides=[[1], [8, 1], [1, 8], [], []],
        Concrete__Inputs=["", "", "", "1", "1"],
    ),
    op("aten::add", 12, 30, tid=2, External__id=3, Input__Dims=[[4], [4], []]),
    call("cudaLaunchKernel", 20, 5, 100, External__id=100),
    call("cudaLaunchKernel", 21, 5, 101, tid=2, External__id=101),
    kernel("gemm", 30, 10, 100, External__id=100, grid=[2, 1, 1], block=[128, 1, 1], registers__per__thread=32),
    kernel("add", 45, 5, 101, External__id=101, shared__memory=16),
]  # fmt: skip


def test_links_by_correlation_and_thread(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path, SMALL, deviceProperties=[H100]))
    gemm, add = trace.kernels
    owner = trace.ops[gemm.op]  # type: ignore[index]
    assert (owner.name, owner.dims, owner.types[0]) == ("aten::addmm", ((16,), (4, 8), (8, 16), (), ()), "float")
    assert (owner.strides, owner.concrete) == (((1,), (8, 1), (1, 8), (), ()), ("", "", "", "1", "1"))
    assert (owner.module, owner.source, owner.phase) == ("Net_0/Linear_0", "net.py(7): forward", "forward")
    assert trace.ops[owner.parent].name == "aten::linear"  # type: ignore[index]
    assert trace.ops[add.op].name == "aten::add"  # type: ignore[index]
    assert trace.ops[add.op].module == ""  # type: ignore[index]
    assert (gemm.launch, gemm.launch_us, gemm.start_us) == ("cudaLaunchKernel", 20, 30)
    assert (gemm.grid, gemm.block) == ((2, 1, 1), (128, 1, 1))
    assert [(o.id, o.parent) for o in trace.ops] == [(0, None), (1, 0), (2, None)]
    assert trace.path_name == "trace.json"
    assert not trace.notes


def test_spellings_of_2021_and_of_torch_before_kineto(tmp_path: Path) -> None:
    """Capitalised categories, threads as texts here and numbers there, call stacks as an argument, a bare list."""
    stack = "/u/lib/python3.7/site-packages/torch/nn/functional.py(9): linear;train.py(5): main;train.py(9): <module>"
    events = [
        {"ph": "X", "cat": "Operator", "name": "ProfilerStep#3", "pid": 5, "tid": "6", "ts": 0, "dur": 90, "args": {}},
        {"ph": "X", "cat": "Operator", "name": "aten::mm", "pid": 5, "tid": "6", "ts": 10, "dur": 20,
         "args": {"External id": "7", "Input dims": [["2", "3"], [3, 4]], "Call stack": stack}},
        {"ph": "X", "cat": "Runtime", "name": "cudaLaunchKernel", "pid": 5, "tid": 6, "ts": 15, "dur": 2,
         "args": {"correlation": "44", "external id": 7}},
        {"ph": "X", "cat": "Kernel", "name": "sgemm", "pid": 0, "tid": "stream 7", "ts": "40", "dur": "3",
         "args": {"correlation": 44, "external id": 7, "registers per thread": "18"}},
        {"ph": "X", "cat": "Memset", "name": "Memset (Device)", "pid": 0, "tid": "stream 7", "ts": 50, "dur": 1,
         "args": {"stream": "9", "bytes": 256}},
    ]  # fmt: skip
    path = tmp_path / "old.json"
    path.write_text(json.dumps(events))
    trace = read_trace(path)
    mm, memset = trace.kernels
    assert trace.ops[mm.op].dims == ((2, 3), (3, 4))  # type: ignore[index]
    assert trace.ops[mm.op].source == "train.py(5): main"  # type: ignore[index]
    assert (mm.stream, mm.dur_us, mm.start_us) == (7, 3.0, 30.0)
    assert (memset.category, memset.stream, memset.bytes, memset.op) == ("memset", 9, 256, None)
    assert [(step.name, step.start_us) for step in trace.steps] == [("ProfilerStep#3", -10.0)]
    legacy = [
        {"name": "aten::mul", "ph": "X", "ts": 1.5, "dur": 9, "tid": 3, "pid": "CPU functions", "args": {}},
        {"name": "aten::mul", "ph": "s", "ts": 1.5, "tid": 3, "pid": "CPU functions", "id": 0, "cat": "cpu_to_cuda"},
        {"name": "aten::mul", "ph": "f", "ts": 20, "tid": 0, "pid": "CUDA functions", "id": 0, "cat": "cpu_to_cuda"},
        {"name": "mul_kernel", "ph": "X", "ts": 20, "dur": 4, "tid": 0, "pid": "CUDA functions", "args": {}},
    ]
    path.write_text(json.dumps(legacy))
    (only,) = read_trace(path).kernels
    assert (only.op, only.launch, only.device) == (0, "", 0)


def test_external_id_only_where_it_is_no_correlation(tmp_path: Path) -> None:
    """Without a runtime call, External id 2 finds addmm; where it repeats the correlation it would find a wrong op."""
    lone = [op("aten::addmm", 0, 9, External__id=2), kernel("gemm", 20, 1, 50, External__id=2)]
    assert read_trace(write(tmp_path, lone)).kernels[0].op == 0
    repeats = [op("aten::addmm", 0, 9, External__id=50), kernel("gemm", 20, 1, 50, External__id=50)]
    assert read_trace(write(tmp_path, repeats)).kernels[0].op is None
    shared = [op("a", 0, 1, External__id=2), op("b", 2, 1, External__id=2), kernel("gemm", 20, 1, 50, External__id=2)]
    assert read_trace(write(tmp_path, shared)).kernels[0].op is None
    late = [op("a", 900, 1, External__id=2), kernel("gemm", 20, 1, 50, External__id=2)]
    assert read_trace(write(tmp_path, late)).kernels[0].op is None


def test_an_arrow_where_nothing_else_links(tmp_path: Path) -> None:
    arrow = {"ph": "s", "id": 50, "pid": 10, "tid": 1, "ts": 4, "cat": "ac2g", "name": "ac2g"}
    fwdbwd = {"ph": "s", "id": 51, "pid": 10, "tid": 1, "ts": 4, "cat": "fwdbwd", "name": "fwdbwd"}
    events = [op("aten::mm", 0, 9), arrow, fwdbwd, kernel("a", 20, 1, 50), kernel("b", 30, 1, 51)]
    trace = read_trace(write(tmp_path, events))
    assert [k.op for k in trace.kernels] == [0, None]
    assert trace.notes == (
        "1 GPU rows (1 us) have no launch in the trace: they were launched before the recording began, "
        "or by a library that it did not see",
        "the trace does not name its GPU (no deviceProperties)",
    )


def test_a_launch_outside_any_op_has_its_module_and_line(tmp_path: Path) -> None:
    """A library's kernel by ctypes: no op, but the frames around it were recorded."""
    events = [
        frame("nn.Module: Net_0", 0, 100), frame("net.py(7): forward", 1, 90), op("aten::mm", 2, 5),
        call("cuLaunchKernel", 20, 2, 1), kernel("k", 40, 2, 1),
    ]  # fmt: skip
    trace = read_trace(write(tmp_path, events, deviceProperties=[H100]))
    (k,) = trace.kernels
    assert (k.op, k.launch, k.module, k.source) == (None, "cuLaunchKernel", "Net_0", "net.py(7): forward")
    assert trace.notes == ("1 GPU rows (2 us) were launched outside any op",)


def test_a_graph_launch_owns_its_kernels(tmp_path: Path) -> None:
    events = [
        annotation("## Call CompiledFxGraph abc ##", 0, 50),
        call("cudaGraphLaunch", 10, 5, 60),
        *(kernel(f"k{i}", 20 + 5 * i, 4, 60, graph__node__id=i) for i in range(3)),
    ]
    trace = read_trace(write(tmp_path, events, deviceProperties=[H100]))
    assert {(k.op, k.launch) for k in trace.kernels} == {(0, "cudaGraphLaunch")}
    assert trace.kernels[2].attributes["graph node id"] == 2
    assert trace.notes == (
        "3 GPU rows (12 us) were launched outside any op",
        "3 GPU rows belong to 1 CUDA graph launches: a graph keeps no op of its kernels, "
        "so the op around the launch owns them",
    )
    assert [(g.dur_us, g.cause) for g in trace.gaps] == [(1, "inside a graph: cudaGraphLaunch")] * 2


def test_triton_keeps_its_metadata(tmp_path: Path) -> None:
    name = "triton_poi_fused_add_0"
    events = [
        op(name, 0, 9, kernel_file="/t/c.py", kernel_hash="c", kernel_backend="triton", num_warps=4, stream=0,
           grid="grid(100,)", Input__Dims=[[10, 10], []], Concrete__Inputs=["", "100"]),
        call("cuLaunchKernel", 3, 2, 8),
        kernel(name, 9, 2, 8, grid=[1, 1, 1]),
    ]  # fmt: skip
    trace = read_trace(write(tmp_path, events))
    assert dict(trace.ops[0].attributes) == {
        "kernel_file": "/t/c.py", "kernel_hash": "c", "kernel_backend": "triton", "num_warps": 4, "stream": 0,
        "grid": "grid(100,)",
    }  # fmt: skip
    assert trace.kernels[0].grid == (1, 1, 1) and not trace.kernels[0].attributes


def test_backward_belongs_to_its_forward_op(tmp_path: Path) -> None:
    """aten::linear and aten::t began with sequence number 5, t made the node; addmm has 6."""
    events = [
        frame("nn.Module: Linear_0", 0, 50),
        op("aten::linear", 1, 40, Sequence__number=5, Fwd__thread__id=0),
        op("aten::t", 2, 5, Sequence__number=5, Fwd__thread__id=0),
        op("aten::addmm", 10, 20, Sequence__number=6, Fwd__thread__id=0),
        call("cudaLaunchKernel", 12, 1, 1), kernel("gemm", 14, 2, 1),
        op("autograd::engine::evaluate_function: AddmmBackward0", 100, 30, 2, Sequence__number=6, Fwd__thread__id=1),
        op("AddmmBackward0", 101, 28, 2, Sequence__number=6, Fwd__thread__id=1),
        op("aten::mm", 102, 20, 2), call("cudaLaunchKernel", 105, 1, 2, 2), kernel("gemm", 110, 2, 2),
        op("autograd::engine::evaluate_function: TBackward0", 140, 9, 2, Sequence__number=5, Fwd__thread__id=1),
        call("cudaLaunchKernel", 142, 1, 3, 2), kernel("t", 150, 2, 3),
        annotation("Optimizer.step#SGD.step", 200, 50),
        op("aten::add_", 205, 20, Sequence__number=9), call("cudaLaunchKernel", 210, 1, 4), kernel("add", 220, 2, 4),
    ]  # fmt: skip
    trace = read_trace(write(tmp_path, events))
    owners = [trace.ops[k.op] for k in trace.kernels]  # type: ignore[index]
    assert [o.phase for o in owners] == ["forward", "backward", "backward", "optimizer"]
    assert [None if o.forward is None else trace.ops[o.forward].name for o in owners] == [
        None, "aten::addmm", "aten::t", None,
    ]  # fmt: skip
    assert [o.module for o in owners] == ["Linear_0", "Linear_0", "Linear_0", ""]


def test_gpu_time_and_gaps(tmp_path: Path) -> None:
    """Stream 7 runs [10, 20), [40, 50) and [100, 110), stream 9 a collective [45, 70) and [105, 108)."""
    events = [
        op("aten::mm", 0, 9), call("cudaLaunchKernel", 1, 2, 1),
        kernel("a", 10, 10, 1),
        op("aten::item", 12, 20), call("cudaStreamSynchronize", 13, 15, 2),
        op("aten::mm", 33, 9), call("cudaLaunchKernel", 35, 2, 3), kernel("a", 40, 10, 3),
        op("aten::all_reduce", 43, 9), call("cudaLaunchKernelExC", 44, 1, 4),
        kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL(args)", 45, 25, 4, stream=9, Collective__name="allreduce"),
        op("enumerate(DataLoader)#next", 60, 35),
        op("aten::mm", 96, 9), call("cudaLaunchKernel", 97, 2, 5), kernel("a", 100, 10, 5),
        call("cudaLaunchKernelExC", 50, 1, 6), kernel("ncclKernel_Broadcast", 105, 3, 6, stream=9),
    ]  # fmt: skip
    trace = read_trace(write(tmp_path, events))
    assert trace.busy_us == {0: 10 + 30 + 10}
    assert trace.exposed_communication_us == {0: 20}
    assert [k.category for k in trace.kernels] == ["kernel", "kernel", "communication", "kernel", "communication"]
    assert trace.kernels[2].attributes["Collective name"] == "allreduce"
    assert [(g.start_us, g.dur_us, g.cause) for g in trace.gaps] == [
        (20, 20, "host: aten::item, after cudaStreamSynchronize"),
        (70, 30, "host: enumerate(DataLoader)#next"),
    ]
    assert trace.span_us == 110


@pytest.mark.parametrize(("between", "cause"), [
    ([call("cudaStreamSynchronize", 15, 30, 2)], "sync: cudaStreamSynchronize"),
    ([call("cudaMalloc", 21, 26, 2)], "allocation: cudaMalloc"),
    ([{"ph": "X", "cat": "overhead", "name": "Activity Buffer Request", "pid": -1, "tid": 0, "ts": 22, "dur": 25}],
     "profiler: Activity Buffer Request"),
    ([{"ph": "X", "cat": "overhead", "name": "Lazy Function Loading", "pid": -1, "tid": 0, "ts": 22, "dur": 25}],
     "first launch: Lazy Function Loading"),
    ([], "host: aten::mul"),
])  # fmt: skip
def test_causes_of_a_gap(tmp_path: Path, between: list[dict[str, Any]], cause: str) -> None:
    """The GPU is idle in [20, 50)."""
    first = [op("aten::mm", 0, 9), call("cudaLaunchKernel", 1, 2, 1), kernel("a", 10, 10, 1)]
    second = [op("aten::mul", 47, 9), call("cudaLaunchKernel", 48, 1, 3), kernel("a", 50, 10, 3)]
    (gap,) = read_trace(write(tmp_path, first + between + second)).gaps
    assert (gap.start_us, gap.dur_us, gap.cause) == (20, 30, cause)


def test_a_slow_first_launch_and_a_queued_kernel(tmp_path: Path) -> None:
    events = [
        op("aten::mm", 0, 50), call("cudaLaunchKernel", 1, 2, 1), kernel("a", 10, 10, 1),
        call("cudaLaunchKernel", 20, 28, 2), kernel("new", 50, 5, 2),
        call("cudaLaunchKernel", 49, 1, 3), kernel("new", 60, 5, 3),
    ]  # fmt: skip
    causes = [gap.cause for gap in read_trace(write(tmp_path, events)).gaps]
    assert causes == ["first launch: aten::mm", "queued: launched before the gap, waited on the GPU"]


def test_zero_length_unsorted_and_duplicate_rows(tmp_path: Path) -> None:
    zero = kernel("memset-like", 60, 0, 200)
    first = read_trace(write(tmp_path, [*SMALL, zero], deviceProperties=[H100]))
    assert first.kernels[-1].dur_us == 0
    shuffled = [*SMALL, zero, SMALL[-1], SMALL[4]]
    for seed in range(10):
        random.Random(seed).shuffle(shuffled)
        again = read_trace(write(tmp_path, shuffled, deviceProperties=[H100]))
        assert (again.ops, again.kernels, again.gaps) == (first.ops, first.kernels, first.gaps)
        assert again.notes[0] == "1 GPU rows stand twice in the file and were counted once"


def test_rounded_clocks(tmp_path: Path) -> None:
    """Whole microseconds: b ends 1 us behind a, which it lies in; c begins when b ends; d is as long as c."""
    events = [
        op("aten::outer", 0, 100, External__id=1), op("aten::a", 0, 10, External__id=2),
        op("aten::b", 2, 9, External__id=3), call("cudaLaunchKernel", 10, 1, 1),
        op("aten::c", 11, 5, External__id=4), op("aten::d", 11, 5, External__id=5), call("cudaLaunchKernel", 11, 2, 2),
        op("aten::e", 50, 20), op("aten::f", 50, 5), call("cudaLaunchKernel", 51, 1, 3),
        op("aten::g", 0, 10, tid=2), call("cudaLaunchKernel", 3, 1, 4, tid=2),
        op("aten::h", 10, 5, tid=2), call("cudaLaunchKernel", 11, 1, 5, tid=2),
        kernel("b", 120, 1, 1), kernel("d", 130, 1, 2), kernel("f", 140, 1, 3), kernel("g", 150, 1, 4),
        kernel("h", 160, 1, 5),
    ]  # fmt: skip
    trace = read_trace(write(tmp_path, events[::-1]))
    assert all(trace.ops[k.op].name == f"aten::{k.name}" for k in trace.kernels)  # type: ignore[index]
    around = {o.name: None if o.parent is None else trace.ops[o.parent].name for o in trace.ops}
    assert around == {
        "aten::outer": None, "aten::a": "aten::outer", "aten::b": "aten::a", "aten::c": "aten::outer",
        "aten::d": "aten::c", "aten::e": "aten::outer", "aten::f": "aten::e",
        "aten::g": None, "aten::h": None,
    }  # fmt: skip


def test_one_correlation_in_two_merged_processes(tmp_path: Path) -> None:
    """Both processes count from 1: each kernel belongs to the last launch before it."""
    events = [
        op("aten::first", 0, 10), call("cudaLaunchKernel", 5, 1, 1), kernel("a", 20, 5, 1),
        op("aten::second", 1000, 10, tid=2), call("cudaLaunchKernel", 1005, 1, 1, tid=2), kernel("b", 1020, 5, 1),
    ]  # fmt: skip
    trace = read_trace(write(tmp_path, events))
    assert [trace.ops[k.op].name for k in trace.kernels] == ["aten::first", "aten::second"]  # type: ignore[index]


def test_a_collective_by_its_arguments(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path, [kernel("home_made", 0, 1, 1, Collective__name="allreduce", Group__size=8)]))
    assert (trace.kernels[0].category, trace.kernels[0].attributes["Group size"]) == ("communication", 8)


def test_which_forward_op_made_the_node(tmp_path: Path) -> None:
    """Of two ops with number 7 the one of the node's name; of the two steps that count alike the earlier; a backward
    op of any name, told by the thread that its forward op ran on."""
    events = [
        op("aten::relu", 0, 20, Sequence__number=7), op("aten::clamp_min", 2, 5, Sequence__number=7),
        op("custom::scale", 30, 5, Sequence__number=8),
        op("ReluBackward0", 100, 10, 2, Sequence__number=7, Fwd__thread__id=1),
        call("cudaLaunchKernel", 102, 1, 1, 2), kernel("relu", 110, 1, 1),
        op("custom::scale_grad", 120, 10, 2, Sequence__number=8, Fwd__thread__id=1),
        call("cudaLaunchKernel", 122, 1, 2, 2), kernel("scale", 130, 1, 2),
        op("aten::relu", 200, 20, Sequence__number=7),
    ]  # fmt: skip
    trace = read_trace(write(tmp_path, events))
    relu, scale = (trace.ops[k.op] for k in trace.kernels)  # type: ignore[index]
    assert (trace.ops[relu.forward].name, trace.ops[relu.forward].start_us) == ("aten::relu", 0)  # type: ignore[index]
    assert (trace.ops[scale.forward].name, scale.phase) == ("custom::scale", "backward")  # type: ignore[index]


@pytest.mark.parametrize(("name", "frame_of"), [
    ("torch/nn/modules/module.py(1743): _call_impl", ""),
    ("<built-in method linear of type object at 0x7f>", ""),
    ("contextlib.py(80): inner", ""),
    ("transformers/models/bert/modeling_bert.py(250): f", "transformers/models/bert/modeling_bert.py(250): f"),
    ("/opt/py/lib/python3.11/site-packages/timm/models/vit.py(3): forward", "timm/models/vit.py(3): forward"),
    ("/opt/py/lib/python3.11/functools.py(3): wrapper", ""),
    ("/home/u/torch/train.py(3): step", "/home/u/torch/train.py(3): step"),
    ("train.py(51): <module>", "train.py(51): <module>"),
    ("no frame", ""),
])  # fmt: skip
def test_user_frames(name: str, frame_of: str) -> None:
    assert user_frame(name) == frame_of


@pytest.mark.parametrize("name", [
    "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)",
    "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)",
    "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(...)",
    "void aiter::cross_device_reduce_2stage<bf16>(...)",
    "void rcclGenericKernel<1, false>(ncclDevKernelArgs)",
    "multimem_all_reduce_kernel",
])  # fmt: skip
def test_kernels_that_communicate(name: str) -> None:
    assert is_communication(name)
    assert not is_communication("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>(x)")


@pytest.mark.defect("24")
@pytest.mark.parametrize("name", [
    "void ep::internode::dispatch<false, 4, 8>(int4*, float*)",
    "void deepseek::internode_ll::combine<true, 7168>(void*)",
    "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<8>(Params)",
    "void tensorrt_llm::kernels::ar_fusion::allreduce_fusion_kernel_twoshot_sync<8, __nv_bfloat16>(x)",
    "void tensorrt_llm::kernels::moe_alltoall::moeA2ADispatchKernel<4>(x)",
    "void mscclpp::allreduce7<__half>(x)",
    "void aiter::reduce_scatter_cross_device_store<__hip_bfloat16, 8>(x)",
    "mori::moe::EpDispatchIntraNodeKernel<__hip_bfloat16>(x)",
    "userbuffers_fp16_sum_inplace_gpu_mc_rs_oop<8>(x)",
    "void flashinfer::trtllm_alltoall::moeAllToAllKernel(x)",
])  # fmt: skip
def test_communication_that_is_not_of_nccl(name: str, tmp_path: Path) -> None:
    """Kernels of DeepEP in another namespace, of fused all-reduces and of MSCCL++ were no communication, so that no
    overlap was reported.

    It runs from 100 to 1,000 us, a product on another stream from 500 to 700: 700 us are exposed."""
    events = [
        call("cudaLaunchKernel", 10, 3, 1), kernel(name, 100, 900, 1, stream=20),
        call("cudaLaunchKernel", 20, 3, 2), kernel("gemm", 500, 200, 2),
    ]  # fmt: skip
    assert read_trace(write(tmp_path, events)).exposed_communication_us == {0: 700}


@pytest.mark.parametrize("name", [
    "triton_red_fused_add_all_gather_into_tensor_3", "void flux::gemm_reduce_scatter<x>(y)",
    "void fmha::softmax<fmha::Allreduce<4>>(x)", "void blockAllReduceSum<float>(x)",
])  # fmt: skip
def test_arithmetic_named_after_a_collective_is_no_communication(name: str) -> None:
    assert not is_communication(name)


@pytest.mark.parametrize(("name", "sms", "expected"), [
    ("NVIDIA H100 80GB HBM3", 132, "h100-sxm"),
    ("AMD Instinct MI300X VF", 304, "mi300x"),
    ("Tesla V100-DGXS-32GB", 80, "v100-sxm2-32gb"),
    ("NVIDIA GeForce RTX 2080 Ti", 68, "rtx-2080-ti"),
    ("NVIDIA A100-PG509-200", 108, "a100-40gb-sxm"),
    ("NVIDIA A100-SXM4-80GB", 108, "a100-80gb-sxm"),
    ("NVIDIA B200", 148, "b200"),
    ("AMD Instinct MI300X", 38, None),  # one eighth of the GPU
    ("NVIDIA A100-SXM4-80GB MIG 3g.40gb", 42, None),
    ("Some Other Board", 10, None),
    ("", 0, None),
])  # fmt: skip
def test_boards_by_the_driver_s_name(tmp_path: Path, name: str, sms: int, expected: str | None) -> None:
    properties = [{"id": 0, "name": name, "numSms": sms}, {"id": 1, "name": "NVIDIA L4", "numSms": 58}]
    trace = read_trace(write(tmp_path, SMALL, deviceProperties=properties))
    assert gpu_name(trace) == expected
    assert [(d.index, d.name, d.kernels) for d in trace.devices] == [(0, name, 2), (1, "NVIDIA L4", 0)]


def test_rocm_numbers_devices_among_all_agents(tmp_path: Path) -> None:
    """The kernel's device is 2, deviceProperties lists only 0: it is that GPU. With two kinds it could be either."""
    mi300 = {"id": 0, "name": "AMD Instinct MI300X", "numSms": 304, "computeMajor": 9, "computeMinor": 4}
    events = [kernel("k", 0, 1, 1, device=2)]
    trace = read_trace(write(tmp_path, events, deviceProperties=[mi300]))
    assert gpu_name(trace) == "mi300x"
    assert [(d.index, d.kernels) for d in trace.devices] == [(0, 0), (2, 1)]
    assert gpu_name(read_trace(write(tmp_path, events, deviceProperties=[mi300, {**H100, "id": 1}]))) is None
    assert gpu_name(read_trace(write(tmp_path, events))) is None


# --- the real traces, against a second, slow way of linking them


def _brute_force(path: Path, every: int) -> list[tuple[float, str, str | None]]:
    """Some GPU rows: start since the first, launch, name of the op of the latest start that holds the launch."""
    with gzip.open(path, "rt", encoding="utf-8", errors="replace") as handle:
        parsed = json.load(handle)
    events = [e for e in parsed["traceEvents"] if e.get("ph") == "X"]
    cat = [str(e.get("cat", "")).lower() for e in events]
    calls = {e["args"]["correlation"]: e for e, c in zip(events, cat, strict=True) if "runtime" in c or "driver" in c}
    ops: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for e, c in zip(events, cat, strict=True):
        if c in ("cpu_op", "operator", "user_annotation") and not e["name"].startswith("ProfilerStep"):
            ops.setdefault((str(e["pid"]), str(e["tid"])), []).append(e)
    on_gpu = ("kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset")
    rows = [e for e, c in zip(events, cat, strict=True) if c in on_gpu]
    zero = min(row["ts"] for row in rows)
    found = []
    for row in rows[::every]:
        launch = calls.get(row["args"]["correlation"])
        near = [] if launch is None else ops.get((str(launch["pid"]), str(launch["tid"])), [])
        around = [o for o in near if o["ts"] <= launch["ts"] and launch["ts"] + launch["dur"] <= o["ts"] + o["dur"] + 1]
        inner = max(around, key=lambda o: (o["ts"], -o["dur"], o["args"].get("External id", 0)), default=None)
        found.append((row["ts"] - zero, launch["name"] if launch else "", inner["name"] if inner else None))
    return found


@pytest.mark.skipif(not TRACES, reason="the recorded traces (shared/traces) are not here")
@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.name[:24])
def test_real_traces_link_as_by_brute_force(path: Path) -> None:
    trace = real_trace(path)
    expected = _brute_force(path, every=max(1, len(trace.kernels) // 150))
    zero = trace.kernels[0].start_us
    ours = {(k.start_us - zero, k.launch, None if k.op is None else trace.ops[k.op].name) for k in trace.kernels}
    assert len(expected) >= min(len(trace.kernels), 150)
    assert set(expected) <= ours


#: rows of the file, share of GPU time with an op, GPU; counted in the files
REAL = {
    "v100_resnet50_tb_2021": (9096, 1.0, "v100-sxm2-32gb"),
    "2080ti_linear": (10356, 1.0, "rtx-2080-ti"),
    "a100_inductor_train_rank0": (7747, 0.867, "a100-80gb-sxm"),  # 872 rows were launched before the recording
    "a100_triton_one_kernel": (1, 1.0, "a100-40gb-sxm"),
    "h100_bert-small": (61, 1.0, "h100-sxm"),
    "mi300__gaunernst_bert-small-uncased__1016001": (61, 1.0, "mi300x"),
    "torch_compile_triton__trace": (12, 1.0, "mi300x"),
}


@pytest.mark.skipif(not TRACES, reason="the recorded traces (shared/traces) are not here")
@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.name[:24])
def test_real_traces_are_covered(path: Path) -> None:
    rows, share, name = REAL[path.name.removesuffix(".json.gz")]
    trace = real_trace(path)
    total = sum(k.dur_us for k in trace.kernels)
    matched = sum(k.dur_us for k in trace.kernels if k.op is not None)
    assert (len(trace.kernels), gpu_name(trace)) == (rows, name)
    assert matched / total == pytest.approx(share, abs=0.001)
    assert 0 < sum(trace.busy_us.values()) <= total * (1 + 1e-9)
    idle = sum(gap.dur_us for gap in trace.gaps)
    first, last = trace.kernels[0].start_us, max(k.end_us for k in trace.kernels)
    assert idle + sum(trace.busy_us.values()) == pytest.approx(last - first, rel=1e-9)


def test_a_trace_of_the_torch_that_is_installed(tmp_path: Path) -> None:
    """torch writes the ops, modules and frames; one launch and one kernel are put inside its aten::addmm."""
    torch = pytest.importorskip("torch")
    config = torch._C._profiler._ExperimentalConfig(verbose=True)
    with torch.profiler.profile(record_shapes=True, with_stack=True, experimental_config=config) as profiler:
        torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU())(torch.ones(2, 8))
    path = tmp_path / "cpu.json"
    profiler.export_chrome_trace(str(path))
    bare = read_trace(path)
    assert bare.notes == ("no GPU row: the profiler ran without a GPU or without ProfilerActivity.CUDA",)
    record = json.loads(path.read_text())
    addmm = next(e for e in record["traceEvents"] if e["name"] == "aten::addmm")
    end = addmm["ts"] + addmm["dur"] - 1e-3  # behind the ops inside it
    launch = call("cudaLaunchKernel", end, 0.0, 77, addmm["tid"])
    record["traceEvents"] += [{**launch, "pid": addmm["pid"]}, kernel("gemm", addmm["ts"] + 1e3, 5, 77)]
    path.write_text(json.dumps(record))
    trace = read_trace(path)
    owner = trace.ops[trace.kernels[0].op]  # type: ignore[index]
    assert (owner.name, owner.dims[:3], owner.types[0]) == ("aten::addmm", ((4,), (2, 8), (8, 4)), "float")
    assert owner.module == "Sequential_0/Linear_0"
    assert "test_trace_reading.py" in owner.source
    assert "aten::linear" in [outer.name for outer in trace.around(owner)]


# --- bad input


def test_the_window_s_size_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, SMALL, schemaVersion=123, deviceProperties=[H100], distributedInfo={"ranks": [0, 345]})
    whole = read_trace(path)
    for size in (1, 7, 64):
        monkeypatch.setattr(stream, "CHUNK_BYTES", size)
        assert read_trace(path) == whole


def test_every_cut_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = write(tmp_path, SMALL[:2] + SMALL[-3:], deviceProperties=[H100]).read_text()
    path = tmp_path / "cut.json"
    for end in range(0, len(text) - 1, 3):
        path.write_text(text[:end])
        with pytest.raises(UsageError) as failure:
            read_trace(path)
        assert "\n" not in str(failure.value)
    path.write_text(text[: text.index(', "shared memory"')])
    with pytest.raises(UsageError, match=r"cut\.json is cut off at event 5, character \d+; copy or record it again"):
        read_trace(path)
    packed = gzip.compress(text.encode())
    for end in (3, 15, len(packed) // 2, len(packed) - 1):
        path.write_bytes(packed[:end])
        with pytest.raises(UsageError, match="cut off"):
            read_trace(path)


@pytest.mark.parametrize(("text", "message"), [
    ("", "is empty"),
    ("hello", "begins with 'hello'"),
    ("{}", 'has no list "traceEvents"'),
    ('{"schema": "memwall.profile/1", "graph": {}}', 'has no list "traceEvents"'),
    ('{"traceEvents": 5}', 'has no list "traceEvents"'),
    ('{"traceEvents": []}', "no event of the PyTorch profiler"),
    ('[{"ph": "X", "cat": "blink", "name": "paint", "ts": 1, "dur": 2, "pid": 1, "tid": 1}]', "no event of the"),
    ('{"traceEvents": [{"a": 1} {"b": 2}]]', "is not JSON: event 3"),
    ('{"traceEvents": [{"a": x}]}' + " " * 40, "is not JSON: event 1"),
    ('{"traceEvents": []} {"traceEvents": []}', "text behind the end"),
    ('{"a": ' + "[" * 200_000, "nested too deep"),
    ('{"traceEvents": [' + '{"args":' * 100_000, "nested too deep"),
    ('{"traceEvents": [{"ts": ' + "1" * 5000 + "}]}", "is not JSON: event 1"),
    ('{5: 1}', "a key should stand here"),
    ('{"a" 1}', "':' should stand here"),
])  # fmt: skip
def test_refused_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(UsageError) as failure:
        read_trace(path)
    assert message in str(failure.value)
    assert "bad.json" in str(failure.value)
    assert "\n" not in str(failure.value)
    assert len(str(failure.value)) < 400


def test_no_file_a_folder_a_damaged_gzip(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        read_trace(tmp_path / "none.json")
    with pytest.raises(UsageError, match="cannot read"):
        read_trace(tmp_path)
    packed = bytearray(gzip.compress(json.dumps(SMALL).encode()))
    packed[len(packed) // 2] ^= 255
    (tmp_path / "flipped.json.gz").write_bytes(packed)
    with pytest.raises(UsageError):
        read_trace(tmp_path / "flipped.json.gz")


def test_one_value_without_end_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A string that never ends is given up after MAX_VALUE_CHARACTERS, not read to the file's end."""
    monkeypatch.setattr(stream, "MAX_VALUE_CHARACTERS", 1 << 20)
    path = tmp_path / "long.json.gz"
    path.write_bytes(gzip.compress(b'{"traceEvents": [{"name": "' + b"x" * (1 << 24)))
    with pytest.raises(UsageError, match="one value is longer than 1 Mi characters"):
        read_trace(path)


def test_odd_numbers_are_dropped_counted_and_said(tmp_path: Path) -> None:
    bad = [
        kernel("negative", 30, -5, 1),
        kernel("never", float("nan"), 5, 1),
        kernel("endless", 30, float("inf"), 1),
        kernel("huge", 10**300, 5, 1),
        {"ph": "X", "cat": "kernel", "name": "unfinished", "ts": 5, "pid": 0, "tid": 7},
        kernel("text", "soon", 5, 1),  # type: ignore[arg-type]
        {"ph": "X", "cat": "kernel", "name": None, "ts": 5, "dur": 5, "pid": 0, "tid": 7},
    ]
    trace = read_trace(write(tmp_path, SMALL + bad, deviceProperties=[H100]))
    assert [k.name for k in trace.kernels] == ["gemm", "add"]
    assert trace.notes == (
        "1 events of negative duration were left out",
        "1 events without a name were left out",
        "5 events without a time or a duration were left out",
    )


def test_odd_arguments_count_as_not_recorded(tmp_path: Path) -> None:
    args = {
        "Input Dims": [[2, -3], "x", None, [[2, 3], [4]], {"a": 1}, [1.0, True]],
        "Input type": [["float", "float"], 5],
    }
    events = [
        op("aten::cat", 0, 9, **args), call("cudaLaunchKernel", 3, 2, 8),
        kernel("k", 9, 2, 8, grid="wide", registers__per__thread=-4, device=-1),
        {"ph": "X", "cat": ["kernel"], "name": "k", "ts": 1, "dur": 1, "pid": {}, "tid": []},
        {"ph": "X", "cat": "cpu_op", "name": "odd", "ts": 1, "dur": 1, "pid": {}, "tid": [], "args": 5},
        {"ph": "s", "cat": "ac2g", "id": {}, "pid": [], "ts": "x"}, None, 5, "text", [],
    ]  # fmt: skip
    trace = read_trace(write(tmp_path, events))  # type: ignore[arg-type]
    owner = trace.ops[0]
    assert owner.dims == ((), (), (), ((2, 3), (4,)), (), ())
    assert owner.types == ("TensorList[float]", "5")
    (k,) = trace.kernels
    assert (k.grid, k.device) == (None, 0)


def test_what_profilers_write_that_json_forbids(tmp_path: Path) -> None:
    """NaN, raw control characters, invalid UTF-8, lone backslashes and a comma behind the last event."""
    text = (
        b'{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "a\\d\x01\xff <script>alert(1)</script>", '
        b'"pid": 0, "tid": 7, "ts": 1, "dur": 2, "args": {"memory bandwidth (GB/s)": NaN, "x": -Infinity}},\n'
        b'{"ph": "X", "cat": "kernel", "name": "C:\\Users\\u12", "pid": 0, "tid": 7, "ts": 5, "dur": 2}, ]}'
    )
    path = tmp_path / "odd.json"
    path.write_bytes(text)
    trace = read_trace(path)
    assert [k.name for k in trace.kernels] == ["a\\d\\x01\ufffd <script>alert(1)</script>", "C:\\Users\\u12"]
    path.write_bytes(b"\xef\xbb\xbf" + text)  # a byte order mark
    assert len(read_trace(path).kernels) == 2
    path.write_text(json.dumps({"traceEvents": [kernel("\ud800\x1b[31m", 0, 1, 1)]}))
    assert read_trace(path).kernels[0].name == "\\ud800\\x1b[31m"


def test_names_with_bare_quotes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kineto does not escape them; torch.compile makes file names that are a dict with quotes."""
    line = (
        '{"ph": "X", "cat": "%s", "name": "{"device": "cuda", "dtype": "x"}(12): \\"run"", "pid": 0, "tid": 7, '
        '"ts": %d, "dur": 2, "args": {"name": "later", "correlation": %d}}'
    )
    path = tmp_path / "quotes.json"
    path.write_text('{"traceEvents": [' + ",".join(line % ("kernel", 9 * i, i) for i in range(1, 40)) + "]}")
    for size in (100, 1 << 20):
        monkeypatch.setattr(stream, "CHUNK_BYTES", size)
        kernels = read_trace(path).kernels
        assert {k.name for k in kernels} == {'{"device": "cuda", "dtype": "x"}(12): "run"'}
        assert [k.start_us for k in kernels] == [9 * i for i in range(39)]


def test_rows_that_the_profiler_could_not_time(tmp_path: Path) -> None:
    """CUPTI writes 0 for them; with a base time that is far before the recording."""
    now = 1_615_207_264_505_000
    events = [
        op("aten::mm", now, 50), call("cudaLaunchKernel", now + 5, 6, 1), call("cudaLaunchKernel", now + 12, 6, 2),
        kernel("timed", now + 20, 9, 1), kernel("untimed", 0, 0, 2),
    ]  # fmt: skip
    trace = read_trace(write(tmp_path, events, deviceProperties=[H100]))
    assert [k.name for k in trace.kernels] == ["timed"]
    assert trace.span_us == 50
    assert trace.notes == ("1 events that the profiler could not time were left out",)


def test_rows_that_run_into_the_next_are_said(tmp_path: Path) -> None:
    """[20, 60) reaches 30 us into [30, 80) of its stream; another stream, and a graph's branches, may overlap."""
    events = [
        op("aten::mm", 0, 50), call("hipLaunchKernel", 1, 2, 1), call("hipLaunchKernel", 4, 2, 2),
        kernel("long", 20, 40, 1), kernel("next", 30, 50, 2), kernel("beside", 25, 40, 2, stream=9),
    ]  # fmt: skip
    trace = read_trace(write(tmp_path, events, deviceProperties=[H100]))
    assert trace.notes == ("GPU rows run 30 us into the next row of their stream: their durations are too long",)
    graph = [call("cudaGraphLaunch", 1, 2, 1), kernel("a", 20, 40, 1), kernel("b", 30, 50, 1)]
    notes = read_trace(write(tmp_path, graph, deviceProperties=[H100])).notes
    assert not any("durations are too long" in note for note in notes)


def test_external_id_finds_the_call_where_nothing_correlates(tmp_path: Path) -> None:
    """No correlation at all: the kernel and its call share External id 100, and the op bears none."""
    launch = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 10, "tid": 1}
    events = [
        op("vllm::fused_moe", 0, 480), {**launch, "ts": 10, "dur": 5, "args": {"External id": 100}},
        op("aten::mul_", 580, 230), {**launch, "ts": 590, "dur": 5, "args": {"External id": 101}},
        kernel("moe", 50, 280, None, External__id=100), kernel("mul", 630, 30, None, External__id=101),  # type: ignore[arg-type]
    ]  # fmt: skip
    trace = read_trace(write(tmp_path, events))
    assert [(k.launch_us, trace.ops[k.op].name) for k in trace.kernels] == [  # type: ignore[index]
        (10, "vllm::fused_moe"),
        (590, "aten::mul_"),
    ]


def test_properties_of_early_2021(tmp_path: Path) -> None:
    v100 = {"id": 0, "name": "Tesla V100-DGXS-32GB", "major": 7, "minor": 0, "multiProcessorCount": 80}
    trace = read_trace(write(tmp_path, SMALL, computeProperties=[v100]))
    assert trace.devices[0].sm_count == 80
    assert gpu_name(trace) == "v100-sxm2-32gb"


def test_nothing_but_one_line_for_any_damage(tmp_path: Path) -> None:
    """Bytes changed, removed and doubled at random: read, or refused with one line; never another error."""
    text = write(tmp_path, SMALL, deviceProperties=[H100]).read_bytes()
    path = tmp_path / "damaged.json"
    refused = 0
    for seed in range(300):
        rng = random.Random(seed)
        data = bytearray(text)
        for _ in range(rng.randint(1, 3)):
            at = rng.randrange(len(data))
            data[at : at + rng.randint(0, 2)] = rng.choice(
                [b"", b"[", b"{", b'"', b"\\", b"-", b"9e999", b"null", b"\xff"]
            )
        path.write_bytes(bytes(data))
        try:
            read_trace(path)
        except UsageError as error:
            refused += 1
            assert "\n" not in str(error)
    assert 50 < refused < 300


@pytest.mark.parametrize("packed", [False, True])
def test_it_says_how_much_of_the_file_is_read(tmp_path, packed):
    """4 MB, or what gzip makes of digits by chance, which is more than 1 MB: said from the beginning to the end."""
    digits = random.Random(0)
    text = json.dumps([{"name": f"{digits.getrandbits(3200):x}"} for _ in range(5000)])
    path = tmp_path / "trace.json"
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    lines: list[Any] = []
    with listening(lines.append):
        stream.read_events(path, lambda event: None, frozenset())
    assert lines[0].done == 0 and lines[-1].done == lines[-1].total > 1
    assert lines[-1].total == round(path.stat().st_size / 1e6)
    assert [line.done for line in lines] == sorted(line.done for line in lines)
