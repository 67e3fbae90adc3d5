"""Random numbers: the integer instructions that they take in eager kernels, in Inductor's and in ours."""

import csv
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

import memwall
from memwall.core.graph import contiguous
from memwall.fusion.pricing import DRAW_INSTRUCTIONS, with_launches
from memwall.hardware.lookup import load_gpu
from memwall.ops import Cost
from memwall.ops.launches import Stream
from memwall.ops.table_calls import cost
from memwall.perfmodel.families import explain, predict
from memwall.perfmodel.roofline import predict_cost

ROOT = Path(__file__).parents[3]
H200 = load_gpu("h200")
SMALL = contiguous((100, 10), "float32")


def dropout(*shape, dtype="float16"):
    data = contiguous(shape, dtype)
    return cost("aten.native_dropout.default", [("input", data)], [data, contiguous(shape, "bool")], p=0.1)


def test_eager_dropout_takes_what_an_h200_measured():
    path = ROOT / "profiles" / "measured" / "h200" / "rows.csv"
    with path.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["name"] == "aten.native_dropout" and row["status"] == "ok"]
    assert len(rows) == 2
    for row in rows:
        shape = tuple(map(int, re.findall(r"\d+", row["shapes"].removeprefix("f16"))))
        assert predict_cost(dropout(*shape), H200).time_s == pytest.approx(float(row["measured_s"]), rel=0.12)


def test_numbers_of_64_bits_take_twice_the_instructions():
    def instructions(name, dtype):
        (launch,) = cost(name, [("self", SMALL)], [contiguous((100, 10), dtype)]).launches
        return launch.draws, launch.instructions

    assert instructions("aten.uniform_.default", "float32") == (1000, 39_000)
    assert instructions("aten.uniform_.default", "float64") == (1000, 78_000)
    assert instructions("aten.normal_.default", "float32") == (1000, 60_000)
    assert instructions("aten.multinomial.default", "int64") == (0, 0)


def test_a_generated_kernel_draws_by_tritons_generator():
    whole = Cost({}, read_bytes=2000, write_bytes=3000, launches=dropout(1000).launches)
    (one,), (four,) = (with_launches(whole, numbers=n).launches for n in (1, 4))
    assert (one.draws, one.instructions, four.instructions) == (1000, 54_000, 20_000)
    still = replace(whole, launches=(Stream(read_bytes=2000, write_bytes=3000),))
    assert with_launches(still).launches[0].instructions == 0
    assert "54 integer instructions for a random number" in explain(one, H200, predict(one, H200))


@pytest.mark.slow
def test_inductor_uses_one_number_of_four_in_rows():
    """An H200 takes 149.5 us for Inductor's kernel of this softmax and dropout, 128 us for ours with one of four."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("triton")

    class Scores(torch.nn.Module):
        def forward(self, x):
            return torch.nn.functional.dropout(x.softmax(-1), 0.1, training=True)

    profile = memwall.profile(Scores(), (torch.zeros(128, 512, 512, dtype=torch.float16),), gpu=H200)
    found = {}
    for policy in ("memwall", "inductor"):
        (group,) = profile.schedule(H200, policy).plan.groups
        (launch,) = group.cost.launches
        found[policy] = launch.instructions / launch.draws
    assert found == {"memwall": DRAW_INSTRUCTIONS[4], "inductor": DRAW_INSTRUCTIONS[1]}


@pytest.mark.slow
@pytest.mark.parametrize("capability", [75, 80, 90])
def test_instructions_are_those_of_a_real_binary(capability, tmp_path):
    triton = pytest.importorskip("triton")
    from tests.unit.fusion import drawing_kernels as kernels

    disassembler = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "nvdisasm"
    if not disassembler.exists():
        pytest.skip("this Triton has no disassembler")
    counts = {}
    for name in ("none", "one", "four"):
        binary = tmp_path / f"{name}.cubin"
        binary.write_bytes(kernels.binary(getattr(kernels, name), capability))
        text = subprocess.run([disassembler, "-c", binary], capture_output=True, text=True, check=True).stdout
        counts[name] = len([line for line in re.findall(r"/\*[0-9a-f]{4,5}\*/\s+([^;]+);", text) if line != "NOP"])
    elements = kernels.BLOCK / kernels.THREADS
    for numbers, name in ((1, "one"), (4, "four")):
        assert (counts[name] - counts["none"]) / elements == pytest.approx(DRAW_INSTRUCTIONS[numbers], rel=0.05)
