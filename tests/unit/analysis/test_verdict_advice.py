"""What a verdict advises can help: by whose bytes a bandwidth-bound product moves, and on which pipe it runs."""

import pytest
import torch
from torch import nn

import memwall
from memwall.analysis.verdict import verdict
from memwall.core.units import counted, duration, percent
from memwall.report.pages.profile_text import host_text


def _verdict(model, inputs, **options):
    profile = memwall.profile(model, (inputs,), gpu="h100", **options)
    return verdict(profile, profile.simulations[0]).text


def test_a_larger_batch_is_advised_where_most_bytes_are_weights():
    # 16 rows of bfloat16 times 8192 x 8192: 134 MB of weights against 0.5 MB of activations
    with torch.device("meta"):
        model, inputs = nn.Linear(8192, 8192, bias=False), torch.empty(16, 8192)
    assert "a larger batch or weights of fewer bytes would pay" in _verdict(model, inputs, dtype="bf16")


def test_no_larger_batch_is_advised_where_most_bytes_are_activations():
    # a 1x1 convolution of 64 channels: 8 kB of weights, 103 MB of activations, at 32 FLOP per byte whatever the batch
    with torch.device("meta"):
        model, inputs = nn.Conv2d(64, 64, 1, bias=False), torch.empty(32, 64, 112, 112)
    text = _verdict(model, inputs, dtype="bf16")
    assert "; 100.0 % of that time is convolution, at 32.0 FLOP per byte" in text
    assert "larger batch" not in text
    assert "fewer bytes per element would pay" in text


class Decode(nn.Module):
    """A product with 8192 x 8192 weights, then attention of 16 samples to 4096 cached tokens of 32 heads of 64."""

    def __init__(self):
        super().__init__()
        self.query = nn.Linear(8192, 8192, bias=False)

    def forward(self, x, keys, values):
        query = self.query(x)[:, :2048].view(16, 32, 1, 64)
        return nn.functional.scaled_dot_product_attention(query, keys, values)


def test_every_class_that_waits_for_memory_is_named():
    # 2*16*8192*8192 FLOP of the product, 4*16*32*4096*64 of attention; 134 MB of weights, 537 MB of keys and values
    with torch.device("meta"):
        model, x, keys, values = Decode(), torch.empty(16, 8192), *(torch.empty(16, 32, 4096, 64) for _ in range(2))
    profile = memwall.profile(model, (x, keys, values), gpu="h100", dtype="bf16", cuda_graph=True)
    text = verdict(profile, profile.simulations[0]).text
    assert "; 100.0 % of that time is attention and contraction, at 4.0 FLOP per byte" in text


def test_fp32_products_are_said_to_run_on_the_pipe_that_mfu_is_relative_to():
    with torch.device("meta"):
        model, inputs = nn.Linear(4096, 4096, bias=False), torch.empty(4096, 4096)
    text = _verdict(model, inputs)
    assert "MFU" in text
    assert "vector.float32" in text.partition("MFU")[2].partition(")")[0]


def test_the_parts_of_overhead_add_up():
    with torch.device("meta"):
        model, inputs = nn.Linear(64, 64), torch.empty(1, 64)
    profile = memwall.profile(model, (inputs,), gpu="h100")
    (schedule,) = profile.simulations
    (kernel,) = schedule.kernels
    work_s = max(kernel.compute_s, kernel.memory_s, kernel.latency_s)
    assert (
        f"{duration(kernel.wait_s)} waiting for the CPU, {duration(work_s)} their work"
        in verdict(profile, schedule).text
    )


@pytest.mark.parametrize(
    ("text", "wanted"),
    [(percent(0.00001), "<0.1 %"), (percent(0.0), "0.0 %"), (duration(1e-12), "<0.1 ns"),
     (counted(1, "launch"), "1 launch"), (counted(1600, "block"), "1,600 blocks")],
)  # fmt: skip
def test_no_false_zero_and_no_wrong_plural(text, wanted):
    assert text == wanted


def test_traffic_of_l2_is_no_traffic_of_dram():
    # ten ReLUs read and write 16.8 MB each: the last nine find in 50 MB of L2 what the one before wrote, 45 % of all
    with torch.device("meta"):
        model, inputs = nn.Sequential(*[nn.ReLU() for _ in range(10)]), torch.empty(4096, 1024)
    text = _verdict(model, inputs, cuda_graph=True)
    assert "Bandwidth binds: twice the L2's bandwidth would save" in text
    assert "; 45.0 % of the step's bytes are read from L2, which more DRAM bandwidth does not speed up" in text


@pytest.mark.parametrize(("rows", "said"), [(4096, False), (768, True)])
def test_the_cpu_is_named_where_a_faster_gpu_would_wait_for_it(rows, said):
    # a step of 4096 rows takes more than twice the CPU's time to issue its 41 ops, one of 768 less
    with torch.device("meta"):
        model, inputs = nn.Sequential(*[nn.Linear(4096, 4096) for _ in range(41)]), torch.empty(rows, 4096)
    profile = memwall.profile(model, (inputs,), gpu="h100", dtype="bf16")
    (schedule,) = profile.simulations
    issued_s = sum(kernel.issue_s for kernel in schedule.kernels)
    assert (schedule.totals.time_s < 2 * issued_s) is said
    text = f"; the CPU takes {duration(issued_s)} to issue the kernels, which no faster GPU shortens"
    assert (text in verdict(profile, schedule).text) is said


def test_two_gpus_and_one_host_are_said_in_one_range():
    # a V100 has no flash attention: its backward is issued as other kernels
    with torch.device("meta"):
        model, inputs = nn.TransformerEncoderLayer(256, 4, batch_first=True), torch.empty(2, 128, 256)
    profile = memwall.profile(model, (inputs,), gpu=["v100", "h100"], mode="training", dtype="fp16")
    times_s = sorted(sum(k.issue_s for k in s.kernels) / len(s.kernels) for s in profile.simulations)
    low, high = map(duration, times_s)
    assert low != high
    assert f"bare-metal: {low} to {high} of CPU time to issue an op, " in host_text(profile.simulations)
