"""Files of kernel contests: ref_kernel() states the work, generate_input() makes the data of a case."""

import pytest

from memwall import profile
from memwall.core.errors import UsageError

FILE = """
import torch
from helper import scale

def generate_input(m: int, n: int, seed: int):
    made = torch.Generator(device="cuda")
    made.manual_seed(seed)
    a = torch.randn(m, n, device="cuda", dtype=torch.float16, generator=made)
    return a, torch.zeros(m, device="cuda", dtype=torch.float16)

def ref_kernel(data):
    a, out = data
    out[...] = scale(a).sum(-1)
    return out
"""


@pytest.fixture
def file(tmp_path):
    (tmp_path / "reference.py").write_text(FILE)
    (tmp_path / "helper.py").write_text("def scale(a): return a * 2\n")
    return tmp_path / "reference.py"


def test_its_data_are_the_inputs_of_a_case(file):
    made = profile(file, dims={"m": 64, "n": 32})
    assert [each["shape"] for each in made.workload.inputs] == [[64, 32], [64]]
    assert [op.name for op in made.graph.ops][:2] == ["aten.mul.Tensor", "aten.sum.dim_IntList"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "generate_input() of {file} needs m, n: give --dim m=N --dim n=N"),
        ({"dims": {"m": 4, "n": 4, "k": 4}}, "takes no 'k'; it takes m, n, seed"),
        ({"dims": {"m": 4, "n": 4}, "batch": 4}, "--batch has no effect with generate_input()"),
    ],
)
def test_what_is_missing_or_unknown_is_said(file, given, words):
    with pytest.raises(UsageError) as error:
        profile(file, **given)
    assert words.format(file=file) in str(error.value)


def test_a_reference_of_several_arguments_gets_them_one_by_one(tmp_path):
    file = tmp_path / "two.py"
    file.write_text(
        "import torch\n"
        "def generate_input(n=8): return torch.zeros(n), torch.ones(n)\n"
        "def reference(a, b): return a + b\n"
    )
    assert [op.name for op in profile(file).graph.ops] == ["aten.add.Tensor"]


def test_a_model_without_such_a_function_has_no_use_for_its_sizes(tmp_path):
    file = tmp_path / "model.py"
    file.write_text("import torch\ndef model(): return torch.nn.ReLU()\ndef inputs(): return (torch.ones(2),)\n")
    with pytest.raises(UsageError, match="the arguments of generate_input"):
        profile(file, dims={"m": 4})
