"""On a machine with a GPU: the clock, the sensors and the three executors, on kernels whose time is known well."""

from __future__ import annotations

import pytest
import torch

import memwall
from memwall.analysis.validation import measurements
from memwall.bench.kernels import measure
from memwall.hardware.lookup import match_device

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU and a CUDA build of torch"),
]

#: 256 MB of float32: far more than any L2
ROWS, COLUMNS = 1 << 16, 1 << 10


class Chain(torch.nn.Module):
    """Three element-wise ops that fuse into one kernel."""

    def forward(self, x):
        return torch.tanh(torch.relu(x + 1.0)) * 2.0


class Layer(torch.nn.Module):
    """A training step with a product, a reduction, dropout and an optimizer."""

    def __init__(self):
        super().__init__()
        self.linear, self.norm = torch.nn.Linear(256, 256), torch.nn.LayerNorm(256)

    def forward(self, x):
        return self.norm(torch.nn.functional.dropout(torch.relu(self.linear(x)), 0.1, self.training) + x)


def profile(module, inputs, **options):
    gpu = match_device(torch.cuda.get_device_name())
    if gpu is None:
        pytest.skip(f"memwall has no spec of {torch.cuda.get_device_name()}")
    return memwall.profile(module, inputs, gpu=gpu, **options)


@pytest.fixture(scope="module")
def chain():
    return measure(profile(Chain(), (torch.ones(ROWS, COLUMNS),)), device="cuda")


def runs(found):
    return {m.executor: m for m in measurements(found)}


def test_every_executor_ran_every_kernel_right(chain):
    for executor, run in runs(chain).items():
        assert [(k.status, k.reason) for k in run.kernels if k.status != "ok"] == [], executor
        assert all(k.error is not None and k.error <= 1 for k in run.kernels), executor
        assert all(k.timing.samples == 30 for k in run.kernels), executor


def test_no_kernel_beats_the_speed_of_light_or_the_copy_by_much(chain):
    for run in runs(chain).values():
        assert run.copy_bytes_per_s > 1e10
        for kernel in run.kernels:
            assert kernel.timing.low_s >= kernel.bound_s, kernel.name
            assert kernel.bytes / kernel.timing.median_s < 1.3 * run.copy_bytes_per_s, kernel.name


def test_one_kernel_moves_a_quarter_of_what_four_move(chain):
    found = runs(chain)
    eager_s = sum(k.timing.median_s * k.repeats for k in found["eager"].kernels)
    for executor in ("generated", "inductor"):
        (fused,) = found[executor].kernels
        assert 2.5 < eager_s / fused.timing.median_s < 6.0


def test_samples_agree_with_each_other_and_the_step_with_its_kernels(chain):
    for run in runs(chain).values():
        for kernel in run.kernels:
            assert kernel.timing.high_s / kernel.timing.low_s < 1.2
        alone_s = sum(k.timing.median_s * k.repeats for k in run.kernels)
        assert run.step is not None, run.step_reason
        assert 0.5 < run.step.median_s / alone_s < 1.3


def test_the_device_says_what_it_is_and_how_it_was(chain):
    run = runs(chain)["eager"]
    assert run.device == torch.cuda.get_device_name() and run.kind == "cuda"
    assert run.environment["torch"] == torch.__version__ and run.environment["floor_s"] < 1e-4
    pytest.importorskip("pynvml", reason="needs pynvml")
    assert all(k.sensors.clock_hz or k.sensors.flags for k in run.kernels)


def test_a_training_step_of_a_small_layer(tmp_path):
    found = measure(profile(Layer(), (torch.ones(512, 256),), mode="training", dtype="bf16"), device="cuda", samples=9)
    for executor, run in runs(found).items():
        odd = [(k.name, k.status, k.reason) for k in run.kernels if k.status not in ("ok", "not generated")]
        assert odd == [], executor
        assert run.step is not None, (executor, run.step_reason)
    found.save(tmp_path / "record.json")
    assert measurements(memwall.Profile.load(tmp_path / "record.json")) == measurements(found)
