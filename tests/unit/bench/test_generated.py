"""Generated kernels on their way through a worker: built, tuned, checked. Triton's interpreter stands for the GPU."""

import json

import pytest

pytest.importorskip("triton", reason="needs Triton")


CHILD = '''
import dataclasses, json, sys
from pathlib import Path
import torch, memwall
import memwall.bench.kernels.session as sessions
from memwall.bench.kernels.executors import KernelBuilder
from memwall.bench.kernels.benchmark_run import plan_work
from memwall.bench.kernels.workers import KernelRun, Setup
from memwall.bench.kernels.session import Session

class Norm(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(96)
    def forward(self, x):
        return torch.relu(self.norm(x) + x)

profile = memwall.profile(Norm(), (torch.ones(8, 96),), gpu="h100-sxm")
work = plan_work(profile, profile.simulations[0].gpu, ["generated"])
session = Session(Setup("cpu", work.graph, work.gpu))
job = work.jobs[0]
result = {"jobs": len(work.jobs)}
good = session.run(KernelRun(job.number, "generated", job.group, 2, 60.0))
result["good"] = [good.status, good.reason, good.error, good.schedule, len(good.samples_s), len(good.config)]
result["compiled"] = session.run(KernelRun(99, "generated", job.group, 0, 60.0)).status

builder = KernelBuilder(work.graph, work.gpu, "cpu", Path(sys.argv[1]))
kernel = builder.generated(job.group)
numbers = [job.number]
def spoiled(spoil):
    """The same kernel with its results spoiled on the way out."""
    def run(*tensors, seed=0, empty=torch.empty_strided):
        return tuple(spoil(t, empty) for t in kernel.run(*tensors, seed=seed, empty=empty))
    sessions.BUILDERS = {"generated": lambda builder, group: dataclasses.replace(kernel, run=run)}
    numbers.append(100 + len(numbers))
    found = session.run(KernelRun(numbers[-1], "generated", job.group, 2, 60.0))
    return [found.status, found.reason, len(found.samples_s)]

def unwritten(t, empty):
    fresh = empty(t.shape, t.stride(), dtype=t.dtype, device=t.device)
    fresh[1:] = t[1:]
    return fresh
result["unwritten"] = spoiled(unwritten)
result["shifted"] = spoiled(lambda t, _: t.roll(1, 0))
result["rounded"] = spoiled(lambda t, _: t.bfloat16().float())
print(json.dumps(result))
'''


@pytest.fixture(scope="module")
def ran(tmp_path_factory, forks):
    folder = tmp_path_factory.mktemp("kernels")
    said = forks.printed(
        CHILD, folder, TRITON_INTERPRET="1", MEMWALL_CACHE=folder / "cache", TRITON_CACHE_DIR=folder / "t"
    )
    return json.loads(said.splitlines()[-1])


def test_a_generated_kernel_is_checked_and_timed(ran):
    status, reason, error, schedule, samples, _ = ran["good"]
    assert (status, reason) == ("ok", "")
    assert 1 <= samples <= 2  # a busy machine may take the time of the second
    assert 0 <= error <= 1
    assert schedule == "persistent"  # a row of 96 fits
    assert ran["jobs"] == 1
    assert ran["compiled"] == "ok"


@pytest.mark.parametrize("fault", ["unwritten", "shifted", "rounded"])
def test_a_spoiled_result_is_wrong_and_gets_no_time(ran, fault):
    status, reason, samples = ran[fault]
    assert (status, samples) == ("wrong", 0)
    assert reason
