"""Files that other programs wrote, on the command line: what is shown, and the one line where a question is wrong."""

import json

from tests.unit.onnx_files import given, node, result, save


def model(folder):
    return save(folder / "net.onnx", [node("y = Relu(x)", "/act/Relu")], [given("x", "batch", 64)], [result("y")])


def test_an_onnx_file_is_profiled(run, folder):
    model(folder)
    done = run("profile", "net.onnx", "--dim", "batch=8", "--gpu", "h100", "--json")
    saved = json.loads(done.out)
    assert done.code == 0 and saved["workload"]["inputs"] == [{"shape": [8, 64], "dtype": "float16"}]


def test_a_symbol_without_a_size_is_named(run, folder):
    model(folder)
    done = run("profile", "net.onnx", "--gpu", "h100")
    assert done.code == 2 and done.error == "net.onnx leaves sizes open: 'batch' of input 'x'; give --dim batch=N"


def test_a_file_is_saved_and_read_again(run, folder):
    model(folder)
    run("profile", "net.onnx", "--dim", "batch=8", "--gpu", "h100", "-o", "net.json")
    assert run("profile", "net.json", "--gpu", "a100", "--by", "module", "-q").code == 0


def test_a_file_that_is_not_there_is_one_line(run, folder):
    assert run("profile", "none.onnx", "--gpu", "h100").error == "no such file: none.onnx"
