"""TARGET → Workload: the contract of a file, names, sizes, and what each mistake says."""

import sys
from textwrap import dedent

import pytest
import torch

import memwall
from memwall.core.errors import UsageError
from memwall.frontend.program import Program
from memwall.frontend.targets import Workload, is_target, named, resolve
from memwall.frontend.targets.target import Parts, split_target, title_of
from memwall.report import render
from tests.unit.places import REFERENCE


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Write a file into a fresh folder that is the current one; returns its name."""
    monkeypatch.chdir(tmp_path)

    def to(name: str, text: str) -> str:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text), encoding="utf-8")
        return name

    return to


def refusal(target: str, **options) -> str:
    with pytest.raises(UsageError) as caught:
        resolve(target, **options)
    return str(caught.value)


FUNCTIONS = """
    import torch
    called = []
    def model():
        called.append("model")
        return torch.nn.Linear(4, 2)
    def inputs(batch=3):
        called.append("inputs")
        return (torch.randn(batch, 4),)
"""


@pytest.mark.parametrize(("target", "parts"), [
    ("a/model.py", Parts("file", "a/model.py", "")),
    ("a/model.py:Net", Parts("file", "a/model.py", "Net")),
    ("C:\\a\\model.py", Parts("file", "C:\\a\\model.py", "")),
    ("pkg.mod:Net", Parts("module", "pkg.mod", "Net")),
    ("pkg.mod", Parts("module", "pkg.mod", "")),
    ("hf:some/dir", Parts("hf", "some/dir", "")),
])  # fmt: skip
def test_targets_are_taken_apart(target, parts):
    assert split_target(target) == parts


@pytest.mark.parametrize(("target", "title"), [
    ("profiles/bert_large/model.py", "bert_large"), ("net.py", "net"), ("net.py:small", "small"),
    ("hf:models/llama", "llama"), ("hf:models/llama/config.json", "llama"), ("torch.nn", "nn"),
    ("torchvision.models:resnet50", "resnet50"), ("steps/decode.mlir", "decode"), ("f32[8] + 1", "f32[8] + 1"),
])  # fmt: skip
def test_a_target_is_called_by_its_name(target, title):
    assert title_of(target) == title


TARGETS = ("m.py", "m.py:Net", "p.mod:Net", "hf:x", "p.json", "a/b", ".memwall/last.json")


@pytest.mark.parametrize("word", [*TARGETS, "a100", "H100-SXM", "my.toml", "specs/my.toml", "NVIDIA H100 80GB HBM3"])
def test_what_reads_as_a_target_and_not_as_a_gpu(word):
    assert is_target(word) == (word in TARGETS)


def test_model_and_inputs_are_not_called_while_resolving(write):
    workload = resolve(write("net.py", FUNCTIONS))
    assert (workload.name, workload.target, workload.optimizer, workload.loss) == ("net", "net.py", "adamw", None)
    module = [m for n, m in sys.modules.items() if n.startswith("memwall_target_") and n.endswith("_net")][-1]
    assert module.called == []
    assert isinstance(workload.model(), torch.nn.Linear)
    assert workload.inputs()[0].shape == (3, 4)
    assert module.called == ["model", "inputs"]


def test_the_folder_names_a_file_called_model(write):
    assert resolve(write("small/model.py", FUNCTIONS)).name == "small"


def test_batch_goes_to_what_takes_it(write):
    assert resolve(write("net.py", FUNCTIONS), batch=7).inputs()[0].shape == (7, 4)


SEQUENCE_FIRST = """
    import memwall, torch
    def model(): return torch.nn.Linear(4, 2)
    def inputs(batch=3, seq=32): return (torch.randn(seq, batch, 4),)
"""
WHOLE = (
    SEQUENCE_FIRST
    + """
    def workload(batch=5): return memwall.Workload(model(), inputs(batch))
"""
)


@pytest.mark.defect("11")
def test_samples_are_the_batch_that_inputs_are_made_to(write):
    """The first axis of the inputs was taken for the batch, so that a sequence that comes first counted as samples."""
    target = write("net.py", SEQUENCE_FIRST)
    default, given = memwall.profile(target), memwall.profile(target, batch=7)
    assert (default.workload.samples, given.workload.samples) == (3, 7)
    assert default.workload.configuration == "inference, float32, batch 3"
    assert memwall.profile(write("whole.py", WHOLE)).workload.samples == 5


@pytest.mark.defect("11")
def test_an_axis_that_is_taken_for_the_batch_is_said(write):
    """Nothing said that the samples of inputs that are made to no batch are a guess."""
    target = write("net.py", SEQUENCE_FIRST)
    found = memwall.profile(target, input_specs=["f32[32,3,4]"])
    assert found.workload.samples == 32
    assert found.workload.configuration == "inference, float32, batch 32 (the first axis)"
    assert "samples: 32, the first axis of the inputs" in " ".join(render(found, "text").split())


def test_seq_may_go_to_the_model(write):
    target = write("net.py", """
        import torch
        def model(seq=2): return torch.nn.Embedding(seq, 4)
        def inputs(): return (torch.zeros(1, dtype=torch.long),)
    """)  # fmt: skip
    assert resolve(target, seq=9).model().num_embeddings == 9


@pytest.mark.parametrize("size", ["batch", "seq"])
def test_a_size_that_nothing_takes_is_refused(write, size):
    target = write("net.py", """
        import torch
        def model(): return torch.nn.Linear(4, 2)
        def inputs(): return (torch.randn(3, 4),)
    """)  # fmt: skip
    assert refusal(target, **{size: 5}) == (
        f"--{size} 5 was given, but inputs() of net.py takes no '{size}'; add it, as in 'def inputs({size}=5)'"
    )
    assert "no effect with --input" in refusal(target, **{size: 5}, input_specs=["f32[3,4]"])
    assert "above 0" in refusal(target, **{size: 0})


def test_the_benchmark_style(write):
    target = write("net.py", """
        import torch
        class Model(torch.nn.Module):
            def __init__(self, width, depth=1):
                super().__init__()
                self.width, self.depth = width, depth
        def get_inputs(): return [torch.randn(2, 4)]
        def get_init_inputs(): return [8, 3]
    """)  # fmt: skip
    workload = resolve(target)
    assert (workload.model().width, workload.model().depth) == (8, 3)
    assert isinstance(workload.inputs(), list)


def test_init_inputs_may_be_keywords(write):
    target = write("net.py", """
        import torch
        class Model(torch.nn.Module):
            def __init__(self, *, width):
                super().__init__()
                self.width = width
        def get_inputs(): return [torch.randn(2, 4)]
        def get_init_inputs(): return {"width": 5}
    """)  # fmt: skip
    assert resolve(target).model().width == 5


def test_workload_wins_over_model_and_over_the_class(write):
    target = write("net.py", FUNCTIONS + """
    from memwall import Workload
    class Model(torch.nn.Module): pass
    def workload(batch=1): return Workload(torch.nn.Identity(), (torch.zeros(batch),), optimizer=None)
    """)  # fmt: skip
    workload = resolve(target, batch=6)
    assert isinstance(workload.model, torch.nn.Identity)
    assert (workload.name, workload.target, workload.optimizer) == ("net", "net.py", None)
    assert workload.inputs[0].shape == (6,)


def test_loss_and_optimizer_beside_the_model(write):
    target = write("net.py", FUNCTIONS + """
    def loss(output): return output.sum()
    def optimizer(parameters): return torch.optim.SGD(parameters, lr=0.5)
    """)  # fmt: skip
    workload = resolve(target)
    assert workload.loss(torch.ones(3)) == 3
    assert workload.optimizer([torch.nn.Parameter(torch.ones(1))]).param_groups[0]["lr"] == 0.5


def test_a_name_in_a_file(write):
    target = write("net.py", FUNCTIONS + """
    class Net(torch.nn.Module):
        pass
    class Wide(torch.nn.Module):
        def __init__(self, width):
            super().__init__()
    ready = torch.nn.Identity()
    def make(): return Net()
    number = 3
    """)  # fmt: skip
    assert type(resolve(target + ":Net").model()).__name__ == "Net"
    assert type(resolve(target + ":make").model()).__name__ == "Net"
    assert isinstance(resolve(target + ":ready").model, torch.nn.Identity)
    workload = resolve(target + ":Net", input_specs=["x=f32[2]"])
    assert (workload.name, workload.target, list(workload.inputs())) == ("Net", "net.py:Net", ["x"])
    assert refusal(target + ":Wide") == "net.py: class Wide needs width; give them defaults or add get_init_inputs()"
    assert refusal(target + ":Nett").endswith("has no 'Nett'; did you mean Net?")
    assert "is of type int" in refusal(target + ":number")


def test_a_name_in_an_installed_module():
    workload = resolve("torch.nn:Identity", input_specs=["f32[2]"])
    assert isinstance(workload.model(), torch.nn.Identity)
    assert workload.name == "Identity"


def test_a_model_without_inputs(write):
    target = write("net.py", "import torch\ndef model(): return torch.nn.Identity()\n")
    assert "has model() but no inputs()" in refusal(target)
    assert "--input 'f32[8,1024]'" in refusal(target)
    assert resolve(target, input_specs=["f32[2]"]).inputs()[0].shape == (2,)


def test_no_contract_shows_the_smallest_file_that_works(write):
    text = refusal(write("net.py", "x = 1\n"))
    assert text.startswith("net.py has neither workload(), nor model() with inputs(), nor a class Model")
    workload = resolve(write("smallest.py", text.partition("\n\n")[2]))
    assert workload.model()(*workload.inputs()).shape == (8, 1024)


@pytest.mark.parametrize(("text", "says"), [
    ("def model(:\n", "loading net.py: net.py:1: invalid syntax in 'def model(:'"),
    ("if 1:\nx = 1\n", "net.py:2: expected an indented block"),
    ("import no_such_module\n", "ModuleNotFoundError: No module named 'no_such_module' (at net.py:1"),
    ("import sys\nsys.exit('bye')\n", "SystemExit: bye (at net.py:2 in <module>: sys.exit('bye'))"),
    ("def f():\n    f()\nf()\n", "RecursionError"),
    ("raise ValueError('a\\nb')\n", "loading net.py: ValueError: a (at net.py:1 in <module>: raise ValueError"),
    ("class E(Exception):\n    def __str__(self): raise KeyError\nraise E\n", "E: (its message cannot be shown)"),
    ("x = 'a\0b'\n", "null bytes"),
    (
        "import torch\ndef go():\n    return torch.ones(2, 3) @ torch.ones(2, 3)\ngo()\n",
        "(at net.py:3 in go: return torch.ones(2, 3) @ torch.ones(2, 3))",
    ),
    ("def workload(): return 3\n", "workload() returned of type int, not a memwall.Workload"),
    ("def workload():\n    return 1 / 0\n", "division by zero (at net.py:2 in workload: return 1 / 0)"),
    ("def model(x, y): pass\ndef inputs(): pass\n", "model() needs x, y; give them defaults"),
    ("def model(): pass\ndef inputs(): pass\nloss = 3\n", "loss is of type int, not a function"),
])  # fmt: skip
def test_what_a_broken_file_says(write, text, says):
    message = refusal(write("net.py", text))
    assert says in message
    assert "\n" not in message


def test_a_syntax_error_in_a_neighbour_names_the_neighbour(write):
    write("part.py", "def (\n")
    assert "part.py:1: invalid syntax" in refusal(write("net.py", "import part\n"))


@pytest.mark.parametrize(("target", "says"), [
    ("nett.py", "no such file: nett.py; did you mean net.py?"),
    ("zzz/other.py", "no such file: zzz/other.py"),
    ("folder", "folder is a folder; did you mean folder/model.py?"),
    ("net.cfg", "net.cfg is not a Python file"),
    ("nothing", "no such file or module: nothing"),
    ("no.such:thing", "there is no module 'no'"),
    ("not a module:x", "no such file: not a module"),
    ("", "names nothing"),
    (":x", "names nothing"),
    ("hf:nowhere", "no such file: nowhere"),
])  # fmt: skip
def test_what_a_missing_target_says(write, target, says):
    write("net.py", FUNCTIONS)
    write("net.cfg", "")
    write("folder/model.py", FUNCTIONS)
    message = refusal(target)
    assert says in message
    assert "\n" not in message


def test_neighbours_import_early_and_late_and_leave_no_bytecode(write, tmp_path):
    write("layers.py", "import torch\nwidth = 4\ndef make(): return torch.nn.Linear(width, 2)\n")
    write("late.py", "width = 5\n")
    target = write("net.py", """
        import torch
        import layers
        def model(): return layers.make()
        def inputs():
            import late
            return (torch.randn(late.width, 4),)
    """)  # fmt: skip
    workload = resolve(str(tmp_path / target))
    before = list(sys.path)
    assert workload.inputs()[0].shape == (5, 4)
    assert workload.model().in_features == 4
    assert sys.path == before
    assert not list(tmp_path.rglob("__pycache__"))
    assert sys.dont_write_bytecode == bool(sys.flags.dont_write_bytecode)


def test_two_folders_may_each_have_their_own_layers(write):
    text = "import torch, layers\ndef model(): return torch.nn.Linear(layers.width, 2)\ndef inputs(): return ()\n"
    for folder, width in (("a", 3), ("b", 4)):
        write(f"{folder}/layers.py", f"width = {width}\n")
        write(f"{folder}/model.py", text)
    models = [resolve(f"{folder}/model.py").model() for folder in "ab"]
    assert [m.in_features for m in models] == [3, 4]


def test_a_file_of_a_package_finds_it_by_its_name_early_and_late(write):
    """Two packages of a repository, of one name and neither installed, each with its own modules."""
    text = "import torch\nfrom own_nets.layers import width\ndef model(): return torch.nn.Linear(width, 2)\n"
    text += "def inputs():\n    from own_nets.late import rows\n    return (torch.randn(rows, width),)\n"
    before = list(sys.path)
    for folder, width in (("a", 3), ("b", 4)):
        write(f"{folder}/own_nets/__init__.py", "")
        write(f"{folder}/own_nets/layers.py", f"width = {width}\n")
        write(f"{folder}/own_nets/late.py", f"rows = {2 * width}\n")
        write(f"{folder}/own_nets/net.py", text)
    made = [resolve(f"{folder}/own_nets/net.py").inputs()[0].shape for folder in "ab"]
    assert made == [(6, 3), (8, 4)]
    assert sys.path == before


def test_a_failed_file_leaves_no_module_behind(write):
    write("layers.py", "width = 4\n")
    before = set(sys.modules)
    refusal(write("net.py", "import layers\nraise ValueError\n"))
    assert set(sys.modules) - before == set()


def test_an_interrupt_passes_through(write):
    with pytest.raises(KeyboardInterrupt):
        resolve(write("net.py", "raise KeyboardInterrupt\n"))


@pytest.mark.parametrize("path", REFERENCE.values(), ids=REFERENCE)
def test_the_reference_workloads_resolve(path):
    workload = named(str(path))
    assert isinstance(workload, Workload | Program)
    assert workload.name == path.parent.name


def test_a_message_whose_first_line_promises_a_second():
    from memwall.frontend.targets.blame import first_line

    assert first_line(ValueError("\nnot valid for 'x':\n  ValueError: 255 is odd\nmore")) == (
        "not valid for 'x': ValueError: 255 is odd"
    )
    assert first_line(ValueError("plain\nmore")) == "plain"


# -- files that ask for a GPU ------------------------------------------------------------------------------------------

ON_DEVICE = {
    "tensor": "t = torch.ones(8, device=device)",
    "module": "t = torch.nn.Linear(8, 8).to(device).cuda()",
    "generator": "t = torch.randn(8, generator=torch.Generator(device=device).manual_seed(0), device=device)",
    "load": "torch.save([torch.ones(8)], 'w.pt'); t = torch.load('w.pt', map_location=device)",
    "default device": "torch.set_default_device(device); t = torch.ones(8)",
    "tensor type": "t = torch.cuda.FloatTensor(8).type(torch.cuda.HalfTensor)",
}


@pytest.mark.parametrize("line", ON_DEVICE.values(), ids=ON_DEVICE.keys())
@pytest.mark.parametrize("place", ["the file", "model()", "model() on the host"])
def test_what_a_file_puts_on_cuda_stays_on_the_host_or_meta(write, line, place):
    in_file, in_model = (line, "pass") if place == "the file" else ("pass", line)
    data = "torch.ones(1, device=device).item()" if place == "model() on the host" else "pass"  # meta has none
    name = write("net.py", f"""
        import torch
        device = "cuda" if torch.cuda.is_available() else "cpu"
        {in_file}
        def model():
            {in_model}
            {data}
            return torch.nn.Linear(8, 8)
        def inputs():
            return (torch.zeros(4, 8, device=device),)
    """)  # fmt: skip
    try:
        assert memwall.profile(name).graph.ops[0].name == "aten.addmm"
    finally:
        torch.set_default_device(None)
