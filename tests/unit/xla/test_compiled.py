"""Plans of programs that XLA has compiled: bytes of each kernel by hand."""

from dataclasses import replace

import pytest

from memwall.hardware.lookup import load_gpu
from memwall.simulate.plan_context import PlanContext
from memwall.xla.compiled import planned
from tests.unit.places import ROOT

#: bytes: x 1024 x 512, w1 and w2 512 x 2048, h 1024 x 2048, in bfloat16
X, W, H = 1024 * 512 * 2, 512 * 2048 * 2, 1024 * 2048 * 2


def plan(name: str, gpu: str, **said):
    text = (ROOT / "tests" / "data" / "hlo" / f"{name}.hlo").read_text(encoding="utf-8")
    return planned(text, load_gpu(gpu), name=name, **said)


def moved(name: str, gpu: str) -> list[tuple[int, int]]:
    return [(group.cost.read_bytes, group.cost.write_bytes) for group in plan(name, gpu).plan.groups]


def test_three_kernels_on_an_h100():
    """The second product is split in four along k, whose float32 sums the softmax adds up."""
    sums = 4 * 1024 * 512 * 4
    assert moved("mlp_h100-sxm", "h100-sxm") == [(X + W, H), (H + W, sums), (sums, X)]


def test_a_v100_converts_to_float32_and_calls_cublas():
    found = moved("mlp_v100-sxm2-16gb", "v100-sxm2-16gb")
    assert found[:3] == [(W, 2 * W), (X, 2 * X), (2 * X + 2 * W, 2 * H)]
    assert len(found) == 9


def test_on_a_tpu_what_lies_in_vmem_does_not_cross_the_border():
    """Two copies of weights into VMEM, a product that reads x, and a result that is copied back."""
    assert moved("mlp_tpu-v5e", "tpu-v5e") == [(W, 0), (W, 0), (X, 0), (0, 0), (0, 0), (0, 0), (0, X)]


def test_a_kernel_has_the_compilers_name_and_one_launch():
    groups = plan("mlp_h100-sxm", "h100-sxm").plan.groups
    assert [group.name for group in groups] == ["gemm_fusion_dot_general.0", "gemm_fusion_dot", "triton_softmax.2"]
    assert [group.cost.kernels for group in groups] == [1, 1, 1]
    assert groups[0].source == "model.py:6"


def test_products_keep_the_shape_in_which_libraries_compute_them():
    first, second, _ = (group.cost.launches[0] for group in plan("mlp_h100-sxm", "h100-sxm").plan.groups)
    assert (first.batch, first.m, first.n, first.k) == (1, 1024, 2048, 512)
    assert (second.batch, second.m, second.n, second.k) == (4, 1024, 512, 512)


@pytest.mark.parametrize("peak", [18_874_368, 30_000_000])
def test_the_peak_is_that_of_the_buffers(peak):
    made = plan("mlp_h100-sxm", "h100-sxm", peak=peak)
    memory = PlanContext.of(made.graph, made.plan, made.costs).memory
    assert (memory.total, memory.inputs) == (peak, X + 2 * W)


def test_messages_are_memwalls_collectives():
    (message,) = (
        launch
        for group in plan("sharded_h100-sxm", "h100-sxm").plan.groups
        for launch in group.cost.launches
        if type(launch).__name__ == "Message"
    )
    assert (message.op, message.nbytes, message.group) == ("all_reduce", 512 * 512 * 2, "0-1")


ADD = (
    "%add (a: f32[], b: f32[]) -> f32[] {\n  %a = f32[] parameter(0)\n  %b = f32[] parameter(1)\n"
    "  ROOT %s = f32[] add(%a, %b)\n}\n\n"
)


def fused(body: str, arguments: str, result: str) -> tuple[int, int, int]:
    """Bytes read and written, and FLOPs, of a fusion of some instructions."""
    shapes = [each.strip() for each in arguments.split(";")]
    given = "\n".join(f"  %p{n} = {shape} parameter({n})" for n, shape in enumerate(shapes))
    asked = ", ".join(f"%p{n}" for n in range(len(shapes)))
    lines = "\n".join(f"  {line.strip()}" for line in body.strip().splitlines())
    text = (
        f"HloModule f, is_scheduled=true\n\n{ADD}%inside () -> f32[] {{\n{given}\n{lines}\n}}\n\n"
        f"ENTRY %main () -> f32[] {{\n"
        f"{given}\n  ROOT %f = {result} fusion({asked}), kind=kLoop, calls=%inside\n}}\n"
    )
    (group,) = planned(text, load_gpu("h100-sxm")).plan.groups
    return group.cost.read_bytes, group.cost.write_bytes, group.cost.total_flops


def test_what_is_sliced_of_a_sum_is_all_that_is_added():
    """8 of 64 rows of 128 floats of two operands."""
    found = fused(
        "%s = f32[64,128]{1,0} add(%p0, %p1)\nROOT %c = f32[8,128]{1,0} slice(%s), slice={[16:24], [0:128]}",
        "f32[64,128]{1,0}; f32[64,128]{1,0}",
        "f32[8,128]{1,0}",
    )
    assert found == (2 * 8 * 128 * 4, 8 * 128 * 4, 8 * 128)


def test_what_is_gathered_of_a_sum_is_all_that_is_added():
    """4 of 1000 rows of 64 bfloat16 numbers, at 4 places of 4 bytes."""
    found = fused(
        "%e = bf16[1000,64]{1,0} add(%p0, %p0)\n"
        "ROOT %g = bf16[4,64]{1,0} gather(%e, %p1), offset_dims={1}, slice_sizes={1,64}",
        "bf16[1000,64]{1,0}; s32[4,1]{1,0}",
        "bf16[4,64]{1,0}",
    )
    assert found == (4 * 64 * 2 + 4 * 4, 4 * 64 * 2, 4 * 64)


def test_numbers_of_four_bits_are_half_a_byte():
    """64 x 128 of them become bfloat16."""
    found = fused("ROOT %c = bf16[64,128]{1,0} convert(%p0)", "s4[64,128]{1,0:E(4)}", "bf16[64,128]{1,0}")
    assert found[:2] == (64 * 128 // 2, 64 * 128 * 2)


def test_what_goes_to_the_host_is_noted():
    text = (
        "HloModule f, is_scheduled=true\n\nENTRY %main (x: f32[256]) -> f32[256] {\n  %x = f32[256]{0} parameter(0)\n"
        "  %s = (f32[256]{0:S(5)}, f32[256]{0}, u32[]) copy-start(%x)\n"
        "  ROOT %d = f32[256]{0:S(5)} copy-done(%s)\n}\n"
    )
    made = planned(text, load_gpu("h100-sxm"))
    assert made.notes == ("1.02 kB are moved to or from the host's memory, over a link that is not modeled.",)


def test_what_a_sum_over_rows_asks_for_is_all_of_them():
    text = (
        f"HloModule f, is_scheduled=true\n\n{ADD}"
        "%inside (p: f32[64,128]) -> f32[64] {\n  %p = f32[64,128]{1,0} parameter(0)\n  %z = f32[] constant(0)\n"
        "  %n = f32[64,128]{1,0} multiply(%p, %p)\n"
        "  ROOT %r = f32[64]{0} reduce(%n, %z), dimensions={1}, to_apply=%add\n}\n\n"
        "ENTRY %main (x: f32[64,128]) -> f32[64] {\n  %x = f32[64,128]{1,0} parameter(0)\n"
        "  ROOT %f = f32[64]{0} fusion(%x), kind=kInput, calls=%inside\n}\n"
    )
    (group,) = planned(text, load_gpu("h100-sxm")).plan.groups
    assert (group.cost.read_bytes, group.cost.write_bytes) == (64 * 128 * 4, 64 * 4)
    assert group.cost.total_flops == 64 * 128 + 64 * 128  # a product and an add for each


def test_what_a_slice_of_sums_over_windows_asks_for_is_all_that_they_add():
    """The last of the 16 running sums of each of 64 rows adds up its 16 numbers."""
    found = fused(
        "%z = f32[] constant(0)\n"
        "%w = f32[64,16]{1,0} reduce-window(%p0, %z), window={size=1x16 pad=0_0x15_0}, to_apply=%add\n"
        "ROOT %s = f32[64,1]{1,0} slice(%w), slice={[0:64], [15:16]}",
        "f32[64,16]{1,0}",
        "f32[64,1]{1,0}",
    )
    assert found == (64 * 16 * 4, 64 * 4, 64 * 16)


def test_what_a_kernel_returns_is_written_also_where_nothing_reads_it():
    """A loop's condition: 32 floats become one truth that no kernel reads."""
    text = (
        f"HloModule f, is_scheduled=true\n\n{ADD}%inside (p: f32[32]) -> pred[] {{\n"
        "  %p = f32[32]{0} parameter(0)\n  %z = f32[] constant(0)\n"
        "  %r = f32[] reduce(%p, %z), dimensions={0}, to_apply=%add\n  %n = f32[] constant(5)\n"
        "  ROOT %l = pred[] compare(%r, %n), direction=LT\n}\n\n"
        "ENTRY %main (x: f32[32]) -> f32[32] {\n  %x = f32[32]{0} parameter(0)\n"
        "  %f = pred[] fusion(%x), kind=kInput, calls=%inside\n  ROOT %n = f32[32]{0} negate(%x)\n}\n"
    )
    cost = planned(text, load_gpu("h100-sxm")).plan.groups[0].cost
    assert (cost.read_bytes, cost.write_bytes, cost.total_flops) == (32 * 4, 1, 32)


@pytest.mark.parametrize(("gpu", "held"), [("h100-sxm", 64), ("tpu-v5e", 0)])
def test_what_a_compiler_has_left_in_hbm_no_tpu_holds_in_vmem(gpu, held):
    """A kernel reads again the 64 bytes that the one before it wrote; a GPU's L2 is a cache and has them."""
    found = plan("mlp_h100-sxm", "h100-sxm")
    context = PlanContext.of(found.graph, found.plan)
    again = replace(context.kinds[0], reuse=((64, 64),))
    assert again.resident_bytes(load_gpu(gpu)) == held
