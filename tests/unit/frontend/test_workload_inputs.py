"""The grammar of ``--input``."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from memwall.core.errors import UsageError
from memwall.frontend.targets.inputs import InputSpec, input_builder, make_tensor, parse_input


@pytest.mark.parametrize(("text", "spec"), [
    ("f32[8,3,224,224]", InputSpec("float32", (8, 3, 224, 224))),
    (" bf16 [ 2 , 3 ] ", InputSpec("bfloat16", (2, 3))),
    ("ids=i64[8,512]", InputSpec("int64", (8, 512), "ids")),
    ("torch.float16[4]", InputSpec("float16", (4,))),
    ("float8_e4m3fn[4,]", InputSpec("float8_e4m3fn", (4,))),
    ("bool[]", InputSpec("bool", ())),
    ("u8[0,3]", InputSpec("uint8", (0, 3))),
    ("half[1_000]", InputSpec("float16", (1000,))),
])  # fmt: skip
def test_reads(text, spec):
    assert parse_input(text) == spec


@pytest.mark.parametrize(("text", "says"), [
    ("f32", "f32[8,3,224,224]"),
    ("f32[8", "cannot read the input 'f32[8'"),
    ("f32[8,-1]", "want [NAME=]DTYPE"),
    ("f32[a]", "want [NAME=]DTYPE"),
    ("f32[1 2]", "not a whole number"),
    ("f32[1,,2]", "not a whole number"),
    ("f33[8]", "no dtype 'f33'"),
    ("torch.nn[8]", "no dtype 'nn'"),
    ("[8]", "want [NAME=]DTYPE"),
    ("", "cannot read the input ''"),
    ("2x=f32[8]", "want [NAME=]DTYPE"),
    ("f32[99999999999,99999999999]", "more elements than any machine addresses"),
])  # fmt: skip
def test_refuses_in_one_line(text, says):
    with pytest.raises(UsageError) as caught:
        parse_input(text)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@given(st.text(max_size=30))
def test_any_text_is_read_or_refused(text):
    try:
        assert isinstance(parse_input(text), InputSpec)
    except UsageError as error:
        assert "\n" not in str(error)


@pytest.mark.parametrize(
    "dtype", ["f64", "f16", "bf16", "i64", "i8", "u8", "bool", "uint16", "float8_e5m2", "complex64"]
)
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_makes_a_tensor_of_every_kind(dtype, device):
    spec = parse_input(f"{dtype}[2,3]")
    with torch.device(device):
        tensor = make_tensor(spec)
    assert (tuple(tensor.shape), str(tensor.dtype), tensor.device.type) == ((2, 3), f"torch.{spec.dtype}", device)


def test_integers_index_small_tables():
    assert int(make_tensor(parse_input("i64[1000]")).min()) >= 0
    assert int(make_tensor(parse_input("i64[1000]")).max()) < 8


def test_positional_or_by_name():
    assert [t.shape for t in input_builder(["f32[2]", "i64[3]"])()] == [(2,), (3,)]
    assert {k: v.shape for k, v in input_builder(["x=f32[2]", "y=i64[3]"])().items()} == {"x": (2,), "y": (3,)}
    with pytest.raises(UsageError, match="all inputs or none"):
        input_builder(["x=f32[2]", "i64[3]"])
    with pytest.raises(UsageError, match="'x' is given twice"):
        input_builder(["x=f32[2]", "x=i64[3]"])
