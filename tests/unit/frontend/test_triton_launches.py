"""Launches of Triton kernels in models and files: what is recorded, priced, compiled and refused."""

from __future__ import annotations

import pytest
import torch
from torch import nn

pytest.importorskip("triton")

import triton

import memwall
from memwall.core.errors import UsageError
from memwall.frontend.targets.launching import Launching
from memwall.ops.triton import work_of
from tests.unit import triton_kernels as kernels

F16 = torch.float16


def add(x, y):
    out, n = torch.empty_like(x), x.numel()
    kernels.vector_add[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, y, out, n, BLOCK=1024)
    return out


class Added(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(64, 64)

    def forward(self, x):
        return add(self.linear(x), x)


@pytest.fixture(scope="module")
def added():
    return memwall.profile(Added(), (torch.randn(100, 64),))


def test_a_launch_is_an_op_next_to_those_of_pytorch(added):
    assert [op.name for op in added.graph.ops] == ["aten.addmm", "triton.vector_add"]


def test_it_has_the_class_of_what_it_does(added):
    assert added.graph.ops[1].op_class == "elementwise"


def test_it_is_modeled(added):
    cost = added.costs[0][1]
    assert (cost.total_flops, cost.read_bytes, cost.write_bytes) == (6_400, 51_200, 25_600)  # 100 x 64 adds of floats


def test_its_line_is_that_of_the_launch(added):
    assert added.graph.ops[1].source.startswith("tests/unit/frontend/test_triton_launches.py:")


def test_a_saved_profile_knows_what_it_does(added, tmp_path):
    added.save(tmp_path / "added.json")
    loaded = memwall.Profile.load(tmp_path / "added.json")
    assert work_of(loaded.graph.ops[1].attributes) == work_of(added.graph.ops[1].attributes)


def test_a_kernel_of_autograd_is_recorded_in_both_passes():
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return add(x, x)

        @staticmethod
        def backward(ctx, grad):
            return add(grad, grad)

    class Model(Added):
        def forward(self, x):
            return Twice.apply(self.linear(x))

    step = memwall.profile(Model(), (torch.randn(100, 64),), mode="training", optimizer=None)
    ours = [op.phase for op in step.graph.ops if op.name == "triton.vector_add"]
    assert ours == ["forward", "backward"]


@pytest.mark.slow
def test_a_launch_that_dynamo_captures_is_in_its_graph():
    from memwall.frontend.targets import Workload
    from memwall.frontend.torch import TraceOptions, trace
    from memwall.wings import part

    workload, options = Workload(Added(), (torch.ones(100, 64),)), TraceOptions()
    graph = trace(workload, options).graph
    found = part("inductor.capture")(workload, options, graph)
    assert (found.failure, list(found.regions)) == (None, [0, 0]), found  # the product and the kernel


# -- how it is priced --------------------------------------------------------------------------------------------------


def launched(function):
    return memwall.profile(Launching(function), ())


def halves(*shape):
    return torch.empty(shape, dtype=F16, device="meta")


def test_a_matmul_is_priced_in_its_own_tiles():
    def launch():
        a = halves(1024, 1024)
        blocks = {"BM": 128, "BN": 256, "BK": 64, "GROUP": 8, "ACTIVATION": ""}
        kernels.matmul[(32,)](a, a, halves(1024, 1024), 1024, 1024, 1024, 1024, 1, 1024, 1, 1024, 1, **blocks)

    (launch,) = launched(launch).costs[0][-1].launches
    # 8 x 4 tiles of 128 x 256, each 1024 deep
    assert (launch.tile, launch.m, launch.n, launch.k) == ((128, 256), 32 * 128, 256, 1024)


def test_a_matmul_of_few_tiles_is_not_split_along_k():
    def launch():
        blocks = {"BM": 128, "BN": 128, "BK": 64, "GROUP": 8, "ACTIVATION": ""}
        sizes = (128, 128, 65536, 65536, 1, 128, 1, 128, 1)
        kernels.matmul[(1,)](halves(128, 65536), halves(65536, 128), halves(128, 128), *sizes, **blocks)

    (kernel,) = launched(launch).simulations[0].kernels
    # 2 x 128 x 128 x 65536 FLOP on one of 132 multiprocessors, which share 989.4 TFLOP/s: 286 us at the peak
    assert kernel.time_s > 286e-6


def test_attention_is_priced_as_fused_attention():
    def launch():
        q = halves(32, 1024, 64)
        kernels.attention[(8, 32)](q, q, q, halves(32, 1024, 64), 0.1, 32, 1024, BM=128, BN=64, D=64, CAUSAL=True)

    cost = launched(launch).costs[0][-1]
    (launch,) = cost.launches
    # 256 programs of 128 queries; 2304 blocks of 128 x 64 pairs, 9 for each program
    assert (launch.FAMILY, launch.heads, launch.queries, launch.pairs) == ("attention", 256, 128, 9 * 128 * 64)


@pytest.mark.parametrize(("columns", "passes"), [(1_000, 0), (100_000, 2)], ids=["in a program", "beyond 128 KiB"])
def test_further_passes_over_rows_that_a_program_cannot_hold_are_traffic(columns, passes):
    def launch():
        x, few = halves(64, columns), torch.empty(64, device="meta")
        kept = (x, halves(64, columns), halves(columns), halves(columns), few, few)
        kernels.layer_norm[(64,)](*kept, columns, columns, 1e-5, BLOCK=256)

    (launch,) = launched(launch).costs[0][-1].launches
    assert launch.second_pass_bytes == passes * 2 * 64 * columns


def test_a_stride_of_three_asks_for_all_sectors():
    def launch():
        x = torch.empty(30000, device="meta")
        kernels.copy_strided[(10,)](x, torch.empty(10000, device="meta"), 10000, 3, BLOCK=1024)

    (launch,) = launched(launch).costs[0][-1].launches
    assert launch.sector_bytes == pytest.approx(120_000, rel=0.01)  # all of x


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_each_atomic_addition_takes_its_time(dtype):
    def launch():
        x, out = (torch.empty(size, device="meta", dtype=dtype) for size in (65_536, 256))
        place = torch.empty(65_536, device="meta", dtype=torch.int32)
        kernels.scatter_add[(64,)](x, place, out, 65_536, BLOCK=1024)

    (launch,) = launched(launch).costs[0][-1].launches
    # as long as 48 bytes of DRAM each, as a scatter of PyTorch's; 256 results are written
    assert launch.read_bytes + launch.write_bytes == 48 * 65_536


def test_few_atomic_additions_take_no_time():
    def launch():
        x = torch.empty(65_536, device="meta")
        kernels.sum_atomic[(64,)](x, torch.empty(1, device="meta"), 65_536, BLOCK=1024)

    (launch,) = launched(launch).costs[0][-1].launches
    assert launch.read_bytes == 65_536 * 4 + 4


# -- configurations, and what is noted ---------------------------------------------------------------------------------


def tuned():
    configs = [triton.Config({"BLOCK": size}, num_warps=size // 128) for size in (512, 1024)]
    kernel, x = triton.autotune(configs=configs, key=["n"])(kernels.vector_add), torch.empty(4096, device="meta")
    kernel[lambda meta: (triton.cdiv(4096, meta["BLOCK"]),)](x, x, torch.empty(4096, device="meta"), 4096)


def test_an_autotuned_kernel_takes_its_first_configuration():
    made = launched(tuned)
    work = work_of(made.graph.ops[-1].attributes)
    assert (work.grid, work.num_warps) == ((8, 1, 1), 4)
    assert any("the first of its 2 configurations" in note for note in made.traced.notes)


@pytest.mark.parametrize("asked", ["config=2", "config=BLOCK=1024", "config=num_warps=8"])
def test_the_user_names_a_configuration(asked):
    made = memwall.profile(Launching(tuned), (), assume=asked)
    assert work_of(made.graph.ops[-1].attributes).num_warps == 8


@pytest.mark.parametrize("asked", ["config=3", "config=BLOCK=2048", "config=BLOCK=512,num_warps=8"])
def test_a_configuration_that_there_is_not_is_refused(asked):
    with pytest.raises(UsageError, match=rf"--assume {asked}: triton.vector_add has 2 configurations: BLOCK: 512"):
        memwall.profile(Launching(tuned), (), assume=asked)


def test_heuristics_are_applied():
    guessed = triton.heuristics({"BLOCK": lambda given: triton.next_power_of_2(given["n_cols"])})(kernels.argmax_rows)

    def launch():
        x = torch.empty(8, 1000, device="meta")
        guessed[(8,)](x, torch.empty(8, dtype=torch.int64, device="meta"), 1000)

    assert launched(launch).costs[0][-1].read_bytes == 32_000


def test_a_kernel_that_reads_beyond_its_tensor_is_noted():
    def launch():
        x = torch.empty(100, device="meta")
        kernels.vector_add[(1,)](x, x, torch.empty(128, device="meta"), 128, BLOCK=128)

    assert any("x_ptr is touched 112 bytes beyond its end" in note for note in launched(launch).traced.notes)


def test_what_data_decides_is_noted():
    def launch():
        index = torch.empty(300, dtype=torch.int64, device="meta")
        kernels.embedding[(300,)](halves(5000, 768), index, halves(300, 768), 768, BLOCK=1024)

    assert any("which elements of table_ptr are touched depends on data" in n for n in launched(launch).traced.notes)


def test_arguments_of_one_storage_are_read_once():
    def launch():
        x = torch.empty(2000, device="meta")
        kernels.vector_add[(1,)](x, x[500:], torch.empty(1000, device="meta"), 1000, BLOCK=1024)

    assert launched(launch).costs[0][-1].read_bytes == 6_000  # elements 0 to 1500


def test_loops_whose_end_data_decides_run_as_often_as_is_assumed():
    def launch():
        x, ends = torch.empty(65536, 128, device="meta"), torch.empty(65, dtype=torch.int32, device="meta")
        kernels.ragged_sums[(64,)](x, ends, torch.empty(64, 128, device="meta"), D=128, BLOCK=64)

    cost = memwall.profile(Launching(launch), (), assume="trips=8").costs[0][-1]
    # 64 sequences x 8 blocks of 64 rows of 128: a sum each; the sums of 128 added up 8 times; and 65 ends of 4 bytes
    assert cost.total_flops == 64 * 8 * (64 * 128 + 128)
    assert cost.read_bytes == 64 * 8 * 64 * 128 * 4 + 65 * 4


# -- as a target, and what is refused ----------------------------------------------------------------------------------

FILE = """\
import torch
import triton
import triton.language as tl

DEVICE = triton.runtime.driver.active.get_active_torch_device()


@triton.jit
def fill(x_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + at, 1.0, mask=at < n)


def launch(batch=2):
    fill[(batch,)](torch.empty(1000 * batch, device=DEVICE), 1000 * batch, BLOCK={block})


def launch_sms():
    count = triton.runtime.driver.active.utils.get_device_properties(0)["multiprocessor_count"]
    fill[(count,)](torch.empty(1024 * count, device=DEVICE), 1024 * count, BLOCK=1024)


def launch_wrong():
    {wrong}
"""


@pytest.fixture
def file(tmp_path):
    def written(block="1024", wrong="pass"):
        path = tmp_path / "kernel.py"
        path.write_text(FILE.format(block=block, wrong=wrong))
        return path

    return written


def test_a_file_with_launch_is_a_target(file):
    assert memwall.profile(file()).costs[0][-1].write_bytes == 8_000


def test_what_its_kernels_write_is_needed(file):
    made = memwall.profile(file(), policy="ideal")
    assert sum(kernel.write_bytes for kernel in made.simulations[0].kernels) == 8_000


def test_its_sizes_are_those_that_it_takes(file):
    assert memwall.profile(file(), batch=3).costs[0][-1].write_bytes == 12_000


def test_triton_driver_answers_as_the_gpu(file):
    made = memwall.profile(f"{file()}:launch_sms", gpu="a100")
    assert work_of(made.graph.ops[-1].attributes).grid == (108, 1, 1)


@pytest.mark.parametrize(
    ("block", "wrong", "said"),
    [
        ("1000", "pass", r"kernel\.py:10: Triton refuses fill: arange's range must be a power of 2"),
        ("1024", "fill(torch.empty(8, device=DEVICE), 8, BLOCK=8)", r"kernel\.py:9: fill is launched without a grid"),
        ("1024", "fill[(1, 1, 1, 1)](torch.empty(8), 8, BLOCK=8)", "a grid of 4 sizes; want one to three"),
        ("1024", "fill[(1,)](torch.empty(8), BLOCK=8)", "does not fit it: .* 'n'"),
        ("1024", "fill[(1,)](torch.empty(8), 8, BLOCK=8, WARPS=4)", "does not fit it: .*WARPS"),
    ],
    ids=["refused", "no grid", "four axes", "an argument short", "an unknown argument"],
)
def test_a_wrong_launch_gets_one_line_with_its_place(file, block, wrong, said):
    target = f"{file(block, wrong)}:{'launch' if block == '1000' else 'launch_wrong'}"
    with pytest.raises(UsageError, match=said) as raised:
        memwall.profile(target)
    assert "\n" not in str(raised.value)
    assert "launched at" in str(raised.value)


@pytest.mark.slow
def test_warmup_gives_a_kernel_with_its_registers_that_can_be_launched():
    found = []

    def launch():
        x, y = torch.empty(64, 781, device="meta"), torch.empty(64, 781, device="meta")
        given = (y, x, 781, 64, 781)
        kernel = kernels.softmax_persistent.warmup(*given, BLOCK=1024, STAGES=4, num_warps=8, grid=(1,))
        kernel._init_handles()
        found.append((kernel.n_regs > 0, kernel.metadata.num_warps))
        kernel[(32, 1, 1)](*given, 1024, 4)

    work = work_of(launched(launch).graph.ops[-1].attributes)
    assert (found, work.grid, work.num_warps) == ([(True, 8)], (32, 1, 1), 8)


# -- compiled ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_most_registers_that_a_launch_allows_are_kept_to():
    from memwall.hardware.lookup import load_gpu
    from memwall.wings import part

    def launch():
        x = torch.empty(64, 8000, device="meta")
        kernels.softmax_row[(64,)](torch.empty_like(x), x, 8000, 8000, 8000, BLOCK=8192, maxnreg=32)

    built = part("codegen.built_kernel")(work_of(launched(launch).graph.ops[-1].attributes), load_gpu("h100"))
    assert built.registers <= 32
    assert built.spilled_bytes > 0  # each of 128 threads holds 64 numbers


@pytest.mark.slow
def test_registers_and_shared_memory_are_those_of_the_binary(tmp_path):
    """The kernel compiled from its source, without memwall, and what NVIDIA's cuobjdump says of the binary."""
    import re
    import subprocess
    import sys
    from pathlib import Path

    from memwall.hardware.lookup import load_gpu
    from memwall.wings import part

    def launch():
        x = halves(64, 1000)
        kernels.rms_norm[(64,)](x, halves(1000), halves(64, 1000), 1000, 1e-6, BLOCK=1024)

    work = work_of(launched(launch).graph.ops[-1].attributes)
    ours = part("codegen.built_kernel")(work, load_gpu("h100"))
    code = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[3])!r})
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from tests.unit.triton_kernels import rms_norm
types = dict(zip(rms_norm.arg_names, ["*fp16", "*fp16", "*fp16", "i32", "fp32", "constexpr"]))
source = ASTSource(rms_norm, types, {{"BLOCK": 1024}}, {{(n,): [["tt.divisibility", 16]] for n in range(3)}})
made = triton.compile(source, target=GPUTarget("cuda", 90, 32))
open({str(tmp_path / "made.cubin")!r}, "wb").write(made.asm["cubin"])
"""
    environment = {"TRITON_CACHE_DIR": str(tmp_path / "cache"), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    said = subprocess.run(
        [tool, "--dump-resource-usage", tmp_path / "made.cubin"], capture_output=True, text=True, check=True
    ).stdout
    registers = int(re.search(r"REG:(\d+)", said)[1])
    assert (ours.registers, ours.spilled_bytes) == (registers, 0)


@pytest.mark.slow
def test_a_product_uses_the_tensor_cores_of_the_gpu():
    from memwall.hardware.lookup import load_gpu
    from memwall.wings import part

    def launch():
        a = halves(256, 256)
        blocks = {"BM": 128, "BN": 128, "BK": 64, "GROUP": 8, "ACTIVATION": ""}
        kernels.matmul[(4,)](a, a, halves(256, 256), 256, 256, 256, 256, 1, 256, 1, 256, 1, **blocks)

    work = work_of(launched(launch).graph.ops[-1].attributes)
    built = part("codegen.built_kernel")
    found = {gpu: built(work, load_gpu(gpu)).tensor_instruction for gpu in ("a100", "h100")}
    assert found == {"a100": "mma.sync", "h100": "wgmma.mma_async"}
