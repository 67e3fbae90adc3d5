"""The speed of light of a whole target, by hand."""

import pytest

from memwall import bound, profile
from memwall.bounding.answer import KernelBounds, fast_p, sol_score
from memwall.core.errors import UsageError
from memwall.core.graph import Pipe
from memwall.hardware.lookup import load_gpu
from memwall.ops import Cost
from memwall.perfmodel.roofline import bound_s
from memwall.report import render

H100, BF16 = 3.35e12, 989.4e12  # B/s and FLOP/s of the datasheet


def of(text: str, gpu: str = "h100", **asked):
    (answer,) = bound(text, gpu=gpu, policy=asked.pop("policy", "eager"), **asked).answers
    return answer


def test_a_matmul_takes_its_flops_at_the_peak():
    found = of("mm(bf16[4096,8192], bf16[8192,4096])")
    flops = 2 * 4096 * 8192 * 4096
    assert found.flops == flops
    assert found.dram_bytes == 2 * (4096 * 8192 + 8192 * 4096 + 4096 * 4096)
    assert found.bound_s == pytest.approx(flops / BF16, rel=1e-3)
    assert found.bound_by == "tensor cores, bfloat16"
    assert found.bound_s <= found.low_s <= found.time_s <= found.high_s


def test_what_lies_between_ops_does_not_cross():
    found = of("x = bf16[8192,8192]; softmax(x + 1, -1) * 2")
    assert found.dram_bytes == 2 * 2 * 8192 * 8192  # read once, written once
    assert found.bound_s == pytest.approx(found.dram_bytes / H100, rel=1e-3)
    assert found.bound_by == "DRAM"


def test_what_l2_holds_is_read_from_it_and_the_answer_says_what_dram_would_take():
    found = of("f32[1024,1024] + 1")
    assert found.bound_by == "L2"  # 8.4 MB of 50
    assert [(other.name, other.bound_s) for other in found.others] == [
        ("every byte from DRAM", pytest.approx(2 * 4 * 1024 * 1024 / H100, rel=1e-3))
    ]


def test_what_attention_writes_for_a_backward_that_does_not_come_does_not_count():
    q = "bf16[2,16,1024,128]"
    # queries, keys, values and results of 8 MiB each; not the 128 KiB of logarithms of sums
    (found,) = bound(f"F.scaled_dot_product_attention({q}, {q}, {q})", gpu="h100", policy="eager").answers
    assert found.dram_bytes == 4 * 2 * 16 * 1024 * 128 * 2


def test_two_products_are_one_kernel():
    found = of("x = bf16[8192,8192]; (x @ bf16[8192,8192]) @ bf16[8192,8192]")
    assert found.dram_bytes == 2 * 4 * 8192 * 8192  # three operands and the result, and not the product between
    assert found.flops == 2 * 2 * 8192**3


def test_tensor_cores_and_vector_units_run_at_the_same_time():
    gpu = load_gpu("h100")
    both = Cost(flops={Pipe("tensor", "bfloat16"): 10**12, Pipe("vector", "float32"): 10**9})
    alone = Cost(flops={Pipe("tensor", "bfloat16"): 10**12})
    assert bound_s(both, gpu) == bound_s(alone, gpu)


def test_vector_units_may_do_the_fewer_flops_of_winograd():
    found = of("conv2d(f32[8,64,56,56], f32[64,64,3,3], padding=1)", "p100")
    direct_s = 2 * 8 * 56 * 56 * 64 * 64 * 9 / 10.6e12
    assert found.bound_s == pytest.approx(direct_s / 4, rel=2e-2)  # F(4x4, 3x3): 36 products for 144


def test_attention_counts_what_a_flash_kernel_does_on_every_gpu():
    text = (
        "x = f16[2,16,1024,64]; scaled_dot_product_attention(x, f16[2,16,1024,64], f16[2,16,1024,64], is_causal=True)"
    )
    pairs = 1024 * 1025 // 2
    for gpu in ("p100", "h100"):  # the first has no fused kernel for it, and forms all scores
        assert of(text, gpu).flops <= 1.01 * 2 * 2 * 2 * 16 * pairs * 64 or gpu == "p100"
    assert of(text, "h100").flops == pytest.approx(2 * 2 * 2 * 16 * pairs * 64, rel=1e-3)


def test_operands_are_multiplied_as_they_are_stored():
    text = "a = fp8[1024,4096]; b = fp8[4096,1024]; (a.float() * f32[1024,1]) @ (b.float() * f32[1,1024])"
    found = of(text)
    assert found.bound_s == pytest.approx(2 * 1024 * 4096 * 1024 / 1978.9e12, rel=1e-3)  # fp8, dense
    assert found.bound_by == "tensor cores, fp8"
    assert "products in float32, to which stored operands are cast" in [other.name for other in found.others]


def test_a_product_takes_the_wider_of_what_its_operands_are_stored_in():
    found = of("bf16[4096,4096] @ fp8[4096,4096].bfloat16()")
    assert found.bound_by == "tensor cores, bfloat16"


def test_a_locked_clock_lowers_the_peak():
    fast, slow = of("mm(bf16[8192,8192], bf16[8192,8192])"), of("mm(bf16[8192,8192], bf16[8192,8192])", clock="1GHz")
    # 132 SMs, 4 tensor cores of 1,024 FLOP a clock each
    assert slow.bound_s == pytest.approx(2 * 8192**3 / (132 * 4096 * 1e9), rel=1e-3)
    assert slow.time_s > fast.time_s


@pytest.mark.parametrize("clock", ["fast", "0", "1THz", "-1GHz"])
def test_no_such_clock(clock):
    with pytest.raises(UsageError, match="--clock is one of a GPU"):
        of("f32[8] + 1", clock=clock)


def test_the_runs_are_those_of_profile(tmp_path):
    """What libraries and memwall take without the host is what memwall profile says with kernels as one graph."""
    text = "x = f16[8192,8192]; softmax(x + 1, -1)"
    found = of(text, policy=["eager", "memwall"])
    made = profile(text, gpu="h100", policy="memwall")
    assert found.run("memwall").dram_bytes == made.simulations[0].totals.dram_bytes == 2 * 2 * 8192 * 8192
    assert found.fastest is found.run("memwall")
    assert (found.time_s, found.limited_by) == (found.fastest.time_s, found.fastest.limited_by)


@pytest.mark.parametrize("measured", [None, "700us", "100us"], ids=["predicted", "slow", "impossible"])
def test_an_answer_has_fifteen_lines_on_a_terminal(measured):
    found = bound("softmax(mm(bf16[4096,8192], bf16[8192,4096]), -1)", gpu="h100", measured=measured)
    lines = [line for line in str(render(found, "text", width=120)).splitlines() if line.strip()]
    assert len(lines) <= 15


def test_the_first_action_is_fusion_with_its_option():
    said = str(render(bound("x = f16[4096,4096]; softmax(x + 1, -1)", gpu="h100", policy=["eager", "memwall"]), "md"))
    first = next(line for line in said.splitlines() if "Look first at " in line)
    assert "Look first at fused by memwall: " in first
    assert "less than libraries, op by op (--policy memwall)" in first


def test_a_time_is_judged_on_each_gpu_as_if_it_were_measured_there():
    found = bound("f16[4096,4096] + 1", gpu=["h100", "a100"], measured="40us", policy="eager")
    said = str(render(found, "text", width=1000))
    assert "h100-sxm: No kernel is faster than" in said
    assert "a run of 40.00 us, if measured on h100-sxm, reaches" in said
    assert "a run of 40.00 us, if measured on a100-80gb-sxm, reaches" in said


def test_what_would_help_a_slower_run_is_not_said_of_a_faster_one():
    """The copy takes 5 us as predicted; the levers are of that run."""
    said = [
        str(render(bound("f32[1024,1024] + 1", gpu="h100", policy="eager", measured=t), "md")) for t in ("1us", "9us")
    ]
    assert ["Look first" in each for each in said] == [False, True]


def test_the_wall_is_named_by_what_the_gpu_has():
    """A V100 multiplies float32 by its vector units, where others take tf32 for a convolution."""
    (found,) = bound("conv2d(f32[8,64,56,56], f32[64,64,3,3])", gpu="v100", policy="eager").answers
    assert found.bound_by == "vector units, float32"


def test_one_kernel_of_a_saved_profile(tmp_path):
    made = profile("x = bf16[4096,4096]; gelu(x @ bf16[4096,4096])", gpu="h100")
    made.save(tmp_path / "step.json")
    (found,) = bound(str(tmp_path / "step.json"), gpu="h100", kernel="mm").answers
    kernel = made.simulations[0].kernels[0]
    assert (found.flops, found.dram_bytes, found.bound_s) == (2 * 4096**3, 3 * 2 * 4096**2, kernel.bound_s)
    assert "called once" not in str(render(bound(str(tmp_path / "step.json"), gpu="h100", kernel="mm"), "text"))
    with pytest.raises(UsageError, match="no kernel named 'conv'"):
        bound(str(tmp_path / "step.json"), kernel="conv")
    with pytest.raises(UsageError, match="names 2 different kernels"):
        bound(made, gpu="h100", kernel="aten")
    with pytest.raises(UsageError, match="traced already"):
        bound(made, gpu="h100", dtype="fp16")


def test_a_kernel_of_a_profile_multiplies_operands_as_they_are_stored():
    made = profile("a = fp8[1024,4096]; b = fp8[4096,1024]; a.float() @ b.float()", gpu="h100")
    (found,) = bound(made, gpu="h100", kernel="mm").answers
    written = "products in float32, to which stored operands are cast"
    assert found.walls[0].name == "tensor cores, fp8"
    assert written in [other.name for other in found.others]


def test_a_kernel_of_a_profile_counts_what_is_needed():
    made = profile("bf16[4096,4096] @ bf16[4096,4096].tril()", gpu="h100")
    (found,) = bound(made, gpu="h100", kernel="mm").answers
    assert found.flops == 4096 * 4096 * 4097  # 4096 x 4097 / 2 numbers of the triangle, 2 x 4096 FLOP each


def test_a_record_loads_again(tmp_path):
    made = bound("f32[1024] + 1", gpu=["h100", "l4"], policy="eager", measured="5us")
    (tmp_path / "bound.json").write_text(made.to_json())
    assert KernelBounds.load(tmp_path / "bound.json") == made
    assert made.to_dict()["schema"] == "memwall.bound/1"


def test_score_of_sol_execbench():
    assert sol_score(10.0, 20.0, 10.0) == 1
    assert sol_score(20.0, 20.0, 10.0) == 0.5
    assert sol_score(15.0, 20.0, 10.0) == pytest.approx(1 / 1.5)
    assert (sol_score(9.0, 10.0, 10.0), sol_score(11.0, 10.0, 10.0)) == (1.0, 0.0)  # nothing between


def test_share_of_kernels_that_are_faster_than_their_baseline():
    assert fast_p([0.5, 1.0, 1.2, 2.5], 1.0) == 0.5
    assert fast_p([], 1.0) == 0


def test_a_view_is_no_kernel():
    found = of("f32[8,4].t()")
    assert (found.bound_s, found.time_s, found.dram_bytes, found.levers) == (0.0, 0.0, 0, ())
    assert "No kernel is needed" in bound("f32[8,4].t()", gpu="l4", policy="eager")._repr_html_()


@pytest.mark.parametrize(
    ("text", "gpu", "products"),
    [  # n/2 frequencies of 8 FLOPs for each pair of channels
        ("conv2d(f32[8,64,128,128], f32[64,64,15,15], padding=7)", "p100", 4 * 64 * 64 * 8 * 128**2),
        ("conv1d(f32[8,64,16384], f32[64,64,1025], padding=512)", "p100", 4 * 64 * 64 * 8 * 16384),
    ],
)
def test_large_windows_may_be_done_by_fourier_transforms(text, gpu, products):
    found = of(text, gpu)
    assert products / 10.6e12 < found.walls[0].time_s < 4 * products / 10.6e12  # with overlap and transforms
    assert found.walls[0].per_s == pytest.approx(10.6e12, rel=1e-3)


def test_tensor_cores_take_fourier_transforms_too():
    found = of("conv1d(f32[8,64,16384], f32[64,64,1025], padding=512)")
    assert found.flops == 2 * 8 * 16384 * 64 * 64 * 1025
    assert found.bound_by == "DRAM"


def test_a_product_of_float32_may_be_a_sum_of_three():
    found = of("mm(f32[4096,4096], f32[4096,4096])", "a100", measured="4ms")
    assert found.bound_s == pytest.approx(2 * 4096**3 / 19.5e12, rel=1e-2)
    assert found.others[0].bound_s == pytest.approx(3 * 2 * 4096**3 / 156e12, rel=1e-2)
    assert "the sum of 3 of tf32" in found.measured.why
    assert not of("mm(f32[4096,4096], f32[4096,4096])", "p100").others


@pytest.mark.parametrize(
    ("text", "flops"),
    [
        ("torch.diag(f32[64]) @ f32[64,32]", 2 * 64 * 32),  # one product for each result
        ("x = f32[64,32]; torch.eye(64, device=x.device) @ x", 2 * 64 * 32),
        ("tril(f32[64,64]) @ f32[64,32]", 2 * 32 * 64 * 65 // 2),  # 65 of 128 are not zero
        ("triu(f32[64,64], 1) @ f32[64,32]", 2 * 32 * 64 * 63 // 2),
        ("triu(f32[64,16] @ f32[16,64])", 2 * 16 * 64 * 65 // 2),
        ("relu((f32[64,16] @ f32[16,64])[:4])", 2 * 16 * 64 * 4),
        ("(f32[64,16] @ f32[16,64])[:4]", 2 * 16 * 64 * 4),
        ("x = f32[64,16] @ f32[16,64]; x[:4] + x[4:8]", 2 * 16 * 64 * 8 + 4 * 64),
        ("x = f32[64,16] @ f32[16,64]; x[:1] + x", 2 * 16 * 64 * 64 + 64 * 64),
    ],
)
def test_products_with_known_zeros_and_for_nobody_are_left_out(text, flops):
    assert of(text).flops == pytest.approx(flops, abs=1)


def test_a_notebook_shows_the_answer():
    assert "No kernel is faster than" in bound("relu(f32[8])", gpu="l4", policy="eager")._repr_html_()
