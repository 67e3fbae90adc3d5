"""A Triton kernel of the user's own in an answer of ``memwall bound``: its runs, and what it is once compiled."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from memwall.bounding.own_kernels import OwnKernel, _hints
from memwall.bounding.run import bound
from memwall.frontend.targets.launching import Launching
from memwall.ops.triton import BlockProduct, KernelWork
from tests.unit import triton_kernels as kernels


def launch():
    x = torch.empty(8192, 3000, device="meta")
    kernels.softmax_row[(8192,)](torch.empty_like(x), x, 3000, 3000, 3000, BLOCK=4096, num_warps=8)


@pytest.fixture(scope="module")
def answer():
    (found,) = bound(Launching(launch), (), gpu="h100").answers
    return found


@pytest.mark.slow
def test_the_bound_is_that_of_its_bytes(answer):
    # 2 x 8192 x 3000 x 4 bytes at 3.35 TB/s
    assert answer.bound_s == pytest.approx(196_608_000 / 3.35e12, rel=1e-3)


@pytest.mark.slow
def test_its_only_run_is_the_launch(answer):
    assert [run.policy for run in answer.runs] == ["eager"]


@pytest.mark.slow
def test_it_is_shown_as_compiled(answer):
    (own,) = answer.own
    assert (own.name, own.programs, own.num_warps, own.spilled_bytes) == ("softmax_row", 8192, 8, 0)


def own(**changes):
    plain = {"name": "k", "programs": 1000, "num_warps": 4, "num_stages": 3, "registers": 32, "spilled_bytes": 0,
             "shared_bytes": 0, "occupancy": 1.0, "limited_by": "warps", "waves": 2.0, "tensor_instruction": "",
             "load_bytes": (16,), "copies": "", "sector_share": 1.0}  # fmt: skip
    return OwnKernel(**{**plain, **changes})


def work(**changes):
    plain = {"grid": (1000, 1, 1), "num_warps": 4, "num_stages": 3, "num_ctas": 1, "ir": "", "op_class": "elementwise"}
    return KernelWork(**{**plain, **changes})


PRODUCTS = work(products=(BlockProduct(128, 128, 64, "tensor.float16", 2.0, 10, 10),))


@pytest.mark.parametrize(
    ("kernel", "does", "said"),
    [
        (own(spilled_bytes=64), work(), "spills 64 B"),
        (own(), PRODUCTS, "without tensor cores"),
        (own(tensor_instruction="mma.sync", load_bytes=(2, 4)), PRODUCTS, "loads 4 of 16 bytes at once"),
        (own(sector_share=0.25), work(), "use 25 % of the sectors"),
        (own(programs=66, waves=0.5), work(), "66 programs fill 50 % of the GPU once"),
        (own(), work(flops=(("arithmetic", "vector.float32", 40),), block_flops=(("vector.float32", 100),)), "60 %"),
    ],
    ids=["spills", "no tensor cores", "narrow", "apart", "few", "masked"],
)
def test_what_costs_time_is_said(kernel, does, said):
    (hint,) = _hints(kernel, does)
    assert said in hint


def test_a_kernel_without_faults_has_no_hint():
    assert list(_hints(own(), work())) == []
