"""Targets that are written out: what they may say, and what they are refused."""

import pytest
import torch

from memwall import profile
from memwall.core.errors import UsageError
from memwall.frontend.targets import resolve
from memwall.frontend.targets.expression import is_expression, workload_of_expression


def run(text: str, *tensors: torch.Tensor) -> torch.Tensor:
    return workload_of_expression(text).model(*tensors)


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        ("mm(bf16[4,8], bf16[8,2])", [("bfloat16", (4, 8)), ("bfloat16", (8, 2))]),
        ("n = 4; x = f32[n, 2*n]; x + 1", [("float32", (4, 8))]),
        ("f16[2]", [("float16", (2,))]),
        ("i64[3,]", [("int64", (3,))]),
        ("f32[2**4]", [("float32", (16,))]),
        ("f32[] + f32[2]", [("float32", ()), ("float32", (2,))]),
    ],
)
def test_inputs_are_those_that_are_written(text, shapes):
    made = workload_of_expression(text).inputs()
    assert [(str(x.dtype).removeprefix("torch."), tuple(x.shape)) for x in made] == shapes


X, Y = torch.arange(6.0).reshape(2, 3), torch.ones(3, 2)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("mm(f32[2,3], f32[3,2])", lambda: X @ Y),
        ("torch.matmul(f32[2,3], f32[3,2])", lambda: X @ Y),
        ("aten.mm.default(f32[2,3], f32[3,2])", lambda: X @ Y),
        ("torch.ops.aten.mm(f32[2,3], f32[3,2])", lambda: X @ Y),
        ("a = f32[2,3]; b = f32[3,2]; (a @ b).sum(-1)", lambda: (X @ Y).sum(-1)),
        ("a, b = f32[2,3].split([1, 1]); a - b + f32[3,2].T[0]", lambda: X[:1] - X[1:] + Y.T[0]),
        ("F.gelu(f32[2,3]) * f32[3,2].mT", lambda: torch.nn.functional.gelu(X) * Y.mT),
        ("torch.nn.functional.relu(-f32[2,3])[:, 1:] @ f32[3,2][1:]", lambda: torch.relu(-X)[:, 1:] @ Y[1:]),
        ("f32[2,3].to(torch.float16).float() @ f32[3,2] / math.sqrt(4)", lambda: X @ Y / 2),
        ("x = f32[2,3]\ny = x @ f32[3,2]", lambda: X @ Y),
        ("torch.fft.rfft(f32[2,3]).real + torch.linalg.norm(f32[3,2])", lambda: torch.fft.rfft(X).real + 6**0.5),
    ],
)
def test_the_result_is_that_of_torch(text, expected):
    assert torch.equal(run(text, X, Y), expected())


def test_a_name_is_no_function_of_the_same_spelling():
    assert torch.equal(run("F_relu = f32[2,3]; relu(F_relu) - F_relu", -X), X)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("sofmax(f32[8])", "no op 'sofmax'; did you mean softmax? (at character 1)"),
        ("F.gelo(f32[8])", "F has no op 'gelo'; did you mean gelu?"),
        ("1 + f32[8].sumn()", "no op 'sumn'; did you mean sum?"),
        ("mm(f32[8,4]", "'(' was never closed"),
        ("mm(x, f32[4,4])", "nothing is called 'x'"),
        ("f32[n]", "nothing is called 'n'"),
        ("f32[-1]", "the size -1 of f32[-1] is no whole number"),
        ("f32[2.5]", "no whole number"),
        ("f32[9999999999,9999999999]", "more elements than any machine"),
        ("relu(3)", "has no input"),
        ("f32[8] if 1 else 2", "and no if exp"),
        ("f32[8]; y += 1", "and no aug assign"),
        ("relu(f32[8], **{})", "written one by one"),
        ("F = f32[8]", "F cannot be the name of a value"),
        ("f32[8] + 10**400", "too large"),
        ("relu(" * 80 + "f32[8]" + ")" * 80, "nested too deeply"),
        ("relu(f32[8])" + " " * 20_000, "at most 10,000 characters"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(text, words):
    with pytest.raises(UsageError) as error:
        workload_of_expression(text)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true') + f32[8]",
        "open('file', 'w') + f32[8]",
        "torch.load('file') + f32[8]",
        "torch.from_file('file', True, 8) + f32[8]",
        "aten.from_file('file', True, 8) + f32[8]",
        "torch.ops.load_library('file') + f32[8]",
        "torch.hub.load('a', 'b')(f32[8])",
        "torch.save(f32[8], 'file')",
        "f32[8].numpy().tofile('file')",
        "f32[8].__class__.__bases__",
        "relu.__globals__['os']",
        "[x for x in f32[8]]",
        "(lambda: f32[8])()",
        "f32[8].data_ptr.__self__",
        "'a' * 10**9 + f32[8]",
        "[f32[8]] * 10**9",
        "f32[8].map_(f32[8], print)",
        "torch.compile(f32[8])",
        "f'{f32[8]}'",
        "import os; f32[8]",
        "torch.nn.Module(f32[8])",
        "exec('x')",
    ],
)
def test_nothing_but_ops_on_tensors_can_be_said(text, monkeypatch):
    monkeypatch.setattr("builtins.exec", lambda *given: pytest.fail("it was run"))
    with pytest.raises(UsageError):
        workload_of_expression(text)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("mm(bf16[4,8], bf16[8,2])", True), ("x = f16[2]; x + x", True), ("f32[8]", True), ("sofmax(x)", True),
        ("model.py", False), ("model.py:build", False), ("package.module:name", False), ("hf:folder", False),
        ("my (old) model.py", False), ("a[1].json", False), ("net.onnx", False), ("h100", False),
    ],
)  # fmt: skip
def test_what_reads_as_an_expression(text, says):
    assert is_expression(text) is says


def test_a_size_option_says_nothing_of_an_expression():
    with pytest.raises(UsageError, match="--batch has no effect on an expression"):
        resolve("relu(f32[8])", batch=4)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = f32[9]; n = x.shape[0]; " + "n = n * n; " * 30 + "x", "too large"),
        ("x = f32[9]; y = x.shape * 10**9; x", "it is no number"),
        ("x = f32[2]; " + "x = (x, x, x, x); " * 30 + "x", "at most 10,000 items"),
        ("x = f32[2]; " + "x = (*x, *x); " * 40 + "x", "at most 10,000 items"),
        ("f32[10**9].unbind()", "unbind has at most 10,000 results"),
        ("a, b = f32[10**9]; a", "unbind has at most 10,000 results"),
        ("f32[10**9].split(3)", "split has at most 10,000 results"),
        ("f32[10**9].tensor_split(10**8)", "at most 20,000 ops"),
        ("y = [" + "f32[8], " * 900 + "]; " + "z = stack(y); " * 100 + "z", "at most 20,000 ops"),
        ("bincount(i64[4], minlength=10**9)", "more than 16,777,216 numbers"),
        ("torch.tensor([1]).repeat(10**9) + f32[1]", "more than 16,777,216 numbers"),
    ],
)
def test_what_would_grow_without_end_is_refused(text, words):
    with pytest.raises(UsageError, match=words):
        profile(text)


@pytest.mark.parametrize(
    "text",
    [
        "torch.kaiser_window(10**10) + f32[1]", "aten.empty_strided([10**12], [1]) + f32[1]",
        "torch.randn(10**6, 10**6, device='cpu') + f32[1]", "conv1d(f32[1,1,10**9], f32[1,1,3])",
    ],
)  # fmt: skip
def test_a_large_tensor_takes_no_memory(text):
    assert profile(text).graph.ops


def test_a_recurrent_layer_is_an_op():
    text = "gru(f32[4,2,8], f32[1,2,8], [f32[24,8], f32[24,8], f32[24], f32[24]], True, 1, 0.0, False, False, False)"
    assert [op.name for op in profile(text).graph.ops] == ["aten._cudnn_rnn"]


def test_a_name_that_nothing_resembles_is_said_alone():
    with pytest.raises(UsageError, match=r"a tensor has no op 'qqqq' \(at character 1\)$"):
        workload_of_expression("f32[8].qqqq()")
