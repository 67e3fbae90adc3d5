"""Text of XLA: real dumps read, and counted by a second reader of a few lines; what is no HLO is refused by line."""

import re
from collections import Counter
from pathlib import Path

import pytest

from memwall.core.errors import UsageError
from memwall.frontend.hlo import HloArray, parse
from memwall.frontend.hlo.parsing import shape_of
from tests.unit.places import ROOT

DATA = ROOT / "tests" / "data" / "hlo"
DUMPS = sorted(DATA.glob("*.hlo"))
MLP = (DATA / "mlp_h100-sxm.hlo").read_text(encoding="utf-8")


def counted(text: str) -> Counter:
    """Operations by name, as a reader counts that knows only what stands before a parenthesis."""
    return Counter(re.findall(r"^ +(?:ROOT )?%\S+ = (?:\(.*?\)|\S+) ([a-z][a-z\-]*)\(", text, re.M))


@pytest.mark.parametrize("path", DUMPS, ids=lambda path: path.stem)
def test_every_instruction_of_a_dump_is_read(path: Path):
    text = path.read_text(encoding="utf-8")
    module = parse(text, path.name)
    found = Counter(one.opcode for each in module.computations.values() for one in each.instructions)
    assert found == counted(text)
    assert module.is_scheduled


def test_an_instruction_has_shape_operands_attributes_and_its_line():
    module = parse(MLP)
    dot = next(one for each in module.computations.values() for one in each.instructions if one.opcode == "dot")
    assert dot.shape == HloArray("bfloat16", (1024, 2048), (1, 0))
    assert len(dot.operands) == 2
    assert dot.integers("lhs_contracting_dims") == (1,)
    assert dot.metadata["op_name"].endswith("jit(mlp)/dot_general")
    assert module.source_of(dot) == "model.py:6"


def test_a_fusion_has_kind_computation_and_configuration():
    fusion = next(one for one in parse(MLP).entry.instructions if "gemm" in one.name)
    assert fusion.attributes["kind"] == "kCustom"
    assert fusion.called == ("gemm_fusion_dot_general.0_computation",)
    assert fusion.backend_config["fusion_backend_config"]["kind"] == "__triton_nested_gemm_fusion"


def test_a_loop_says_how_often_it_runs():
    module = parse((DATA / "loop_h100-sxm.hlo").read_text(encoding="utf-8"))
    loop = next(one for one in module.entry.instructions if one.opcode == "while")
    assert loop.trip_count == 7
    assert set(loop.called) == {"region_0.4", "region_2.5"}


def test_a_program_of_four_devices_says_so():
    assert parse((DATA / "sharded_h100-sxm.hlo").read_text(encoding="utf-8")).partitions == 4


def test_arrays_of_a_tpu_lie_in_tiles_and_in_vmem():
    tiled = shape_of("bf16[1024,512]{0,1:T(8,128)(2,1)S(1)}")
    assert tiled == HloArray("bfloat16", (1024, 512), (0, 1), ((8, 128), (2, 1)), 1)
    assert tiled.strides == (1, 1024)


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("f32[]", HloArray("float32", (), ())),
        ("pred[3]", HloArray("bool", (3,), (0,))),
        ("f32[<=8,2]{1,0}", HloArray("float32", (8, 2), (1, 0))),
        ("s4[8,2]{1,0:T(8,128)(2,1)E(4)}", HloArray("int4", (8, 2), (1, 0), ((8, 128), (2, 1)), 0, 4)),
        ("f8e4m3fn[4]{0}", HloArray("float8_e4m3fn", (4,), (0,))),
        ("token[]", ()),
        ("(f32[2]{0}, /*index=1*/(s8[], u32[]{:S(2)}))", (
            HloArray("float32", (2,), (0,)), (HloArray("int8", (), ()), HloArray("uint32", (), (), (), 2)),
        )),
    ],
)  # fmt: skip
def test_shapes(text, shape):
    assert shape_of(text) == shape


def test_text_without_percent_signs_and_signatures_is_read():
    module = parse(
        "HloModule f, entry_computation_layout={(f32[2]{0})->f32[2]{0}}\n\n"
        "ENTRY main.3 {\n  Arg_0.1 = f32[2]{0} parameter(0)\n  ROOT add.2 = f32[2]{0} add(Arg_0.1, Arg_0.1)\n}\n"
    )
    assert module.entry.by_name["add.2"].operands == ("Arg_0.1", "Arg_0.1")
    assert not module.is_scheduled


def test_operands_with_their_shapes_and_literals_on_several_lines_are_read():
    module = parse(
        "HloModule f\n\nENTRY %main (p: f32[2,2]) -> f32[2,2] {\n  %p = f32[2,2]{1,0} parameter(0)\n"
        "  %c = f32[2,2]{1,0} constant({\n    { 1, 2 },\n    { 3, 4 }\n  })\n"
        '  ROOT %sum = f32[2,2]{1,0} add(f32[2,2]{1,0} %p, f32[2,2]{1,0} %c), metadata={op_name="a(b"}\n}\n'
    )
    assert module.entry.by_name["sum"].operands == ("p", "c")
    assert module.entry.by_name["sum"].metadata == {"op_name": "a(b"}


def broken(change) -> str:
    with pytest.raises(UsageError) as error:
        parse(change(MLP), "dump.hlo")
    assert "\n" not in str(error.value)
    return str(error.value)


def test_what_is_no_hlo_is_refused():
    assert broken(lambda text: "import torch\n") == "dump.hlo, line 1: this is no HLO, which begins with HloModule"
    assert "line 1" in broken(lambda text: "")


def test_a_text_that_is_cut_off_is_refused_with_its_line():
    lines = MLP.splitlines()
    within = "\n".join(lines[:-2])
    assert (
        broken(lambda text: within) == f"dump.hlo, line {len(lines) - 2}: the text ends within the computation main.5"
    )
    entry = next(number for number, line in enumerate(lines) if line.startswith("ENTRY"))
    assert "ends before the ENTRY computation" in broken(lambda text: "\n".join(lines[:entry]))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (" parameter(0)", "", "there is no operation"),
        ("= bf16[", "= b17[", "no type 'b17' is known"),
        ("{1,0} parameter(0)", "{2,0} parameter(0)", "the layout does not fit the shape"),
        (" parameter(0)", " parameter(nan)", "has no number"),
        ("is_scheduled=true", "num_partitions=many", "how many devices run it is no number"),
        ("= bf16[", "= bf16[-", "the sizes are no numbers of elements"),
        ("= bf16[", "= bf16[99999999999999999999,", "the sizes are no numbers of elements"),
        ("= bf16[", f"= {'(' * 100_000}bf16[", "there is no shape"),
        ("dot(%parameter_0,", "dot(%parameter_9,", "names parameter_9, which is not there"),
        ("%parameter_0 =", "%parameter_0 ", "this is no instruction"),
    ],
)
def test_a_line_that_is_damaged_is_named(old, new, said):
    number = next(number for number, line in enumerate(MLP.splitlines(), 1) if old in line)
    found = broken(lambda text: text.replace(old, new, 1))
    assert found.startswith(f"dump.hlo, line {number}: ")
    assert said in found


def test_a_computation_that_calls_itself_is_refused():
    first, second = (
        f"%{name} {{\n  %p = f32[] parameter(0)\n  ROOT %c = f32[] call(%p), to_apply=%{other}\n}}\n\n"
        for name, other in ("ab", "ba")
    )
    with pytest.raises(UsageError, match=r"the computation [ab] calls itself"):
        parse(f"HloModule f\n\n{first}{second}ENTRY %main {{\n  ROOT %p = f32[] parameter(0)\n}}\n")
