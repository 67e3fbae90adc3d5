"""The gate's configuration: what each table means, which limit goes first, and every mistake with the way out."""

import re

import pytest

from memwall.core.errors import UsageError
from memwall.gate.config import DEFAULTS, GateConfig, parse_scope
from memwall.gate.reading import expand, find_config, read_config, workload_name
from memwall.hardware.lookup import load_gpu, spec_path


@pytest.fixture
def read(tmp_path):
    def go(text: str | bytes, name: str = "memwall.toml") -> GateConfig:
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return read_config(path)

    return go


def limits_of(config: GateConfig, name: str = "net", gpu="h100-sxm", policy="eager", **options) -> dict[str, str]:
    """``kernels`` or ``kernels@layers.*`` → the texts of its limits."""
    workload = next(w for w in config.workloads if w.name == name)
    found = config.limits(workload, gpu, policy, **{"compared": False, **options})
    return {q + f"@{m}" * bool(m): " ".join(row.text for row in rows) for (q, m), rows in found.items()}


@pytest.mark.parametrize(("name", "head"), [
    ("memwall.toml", "[gate]"),
    ("memwall.toml", "[tool.memwall.gate]"),
    ("pyproject.toml", "[project]\nname = 'x'\n[tool.memwall.gate]"),
    ("pyproject.toml", "[tool.memwall.gate]"),
    ("any.toml", "[gate]"),
    ("memwall.toml", "\ufeff[gate]"),
])  # fmt: skip
def test_a_gate_stands_in_either_file(read, name, head):
    config = read(f"{head}\ntarget = 'net.py'\nkernels = 120\n", name)
    assert [(w.name, w.target, w.policies) for w in config.workloads] == [("net", "net.py", ("eager", "memwall"))]
    assert [gpu.name for gpu in config.workloads[0].gpus] == ["h100-sxm"]
    assert limits_of(config) == {"coverage": "100 %", "kernels": "120"}
    assert config.source == name


def test_what_is_served_has_a_load_and_a_decode_step(read):
    config = read("""
        [gate]
        policy = "memwall"
        [gate.workloads.chat]
        target = "chat.py"
        mode = "serve"
        tp = 2
        prompt = 2000
        generate = 100
        dtype = "float16"
        price = { h100 = 2.5 }
        tpot = "30 ms"
        cost_per_mtok = "0.4 USD"
        [gate.workloads.plain]
        target = "chat.py"
        mode = "serve"
    """)
    chat, plain = config.workloads
    load = {"prompt": 2000, "generate": 100, "concurrency": 16, "tp": 2, "price": {"h100": 2.5}}
    assert chat.load == load and chat.policies == ("server",)
    assert chat.tracing == {"mode": "decode", "batch": 2, "context": 2099, "dtype": "float16"}
    assert limits_of(config, "chat") == {
        "coverage": "100 %", "tpot_s": "30 ms", "usd_per_million_tokens": "0.4 USD",
    }  # fmt: skip
    assert plain.load == {"prompt": 1024, "generate": 256, "concurrency": 16}


def test_a_program_of_many_gpus_has_a_world_and_no_graph_breaks(read):
    config = read("""
        [gate]
        graph_breaks = "+0"
        [gate.workloads.ranks]
        target = "train.py"
        cluster = "dgx-h100"
        world = 64
        rank = 7
        communication_bytes = "+0%"
    """)
    (ranks,) = config.workloads
    assert ranks.tracing == {"cluster": "dgx-h100", "world": 64, "rank": 7}
    assert limits_of(config, "ranks") == {"communication_bytes": "+0%", "coverage": "100 %"}


@pytest.mark.parametrize(("text", "said"), [
    ("world = 8\ngraph_breaks = 0", "graph_breaks are not looked for in a program of many GPUs"),
    ("mode = 'serve'\nworld = 8", "what is served has tp in its place"),
    ("tp = 2", 'tp says how a model is served; add mode = "serve"'),
    ("mode = 'serve'\ntp = 'two'", "tp is str; want a whole number"),
    ("mode = 'serve'\nconcurency = 2", "did you mean concurrency?"),
    ("mode = 'serve'\ntpot = '3 GB'", "no unit 'GB' for mean time per output token"),
    ("mode = 'server'", "mode is 'server'; want inference or training"),
])  # fmt: skip
def test_what_is_served_is_said_so(read, text, said):
    with pytest.raises(UsageError, match=re.escape(said)):
        read(f"[gate.workloads.chat]\ntarget = 'chat.py'\n{text}")


def test_workloads_are_a_table_or_patterns(read, tmp_path):
    for name in ("b", "a"):
        (tmp_path / "nets" / name).mkdir(parents=True)
        (tmp_path / "nets" / name / "model.py").touch()
    config = read("[gate]\nbatch = 3\nworkloads = ['nets/*/model.py', 'x.y:Net', 'hf:conf/llama']")
    assert [(w.name, w.target) for w in config.workloads] == [
        ("a", "nets/a/model.py"), ("b", "nets/b/model.py"), ("x.y.Net", "x.y:Net"), ("llama", "hf:conf/llama"),
    ]  # fmt: skip
    assert all(w.options == {"batch": 3} for w in config.workloads)
    config = read("""
        [gate]
        gpu = ["h100", "a100"]
        seq = 128
        mode = "training"
        [gate.workloads.small]
        target = "net.py:small"
        [gate.workloads.big]
        target = "net.py:big"
        gpu = "b200"
        policy = ["memwall", "memwall"]
        mode = "inference"
        input = ["f32[3]"]
    """)
    small, big = config.workloads
    assert [g.name for g in small.gpus] == [load_gpu(n).name for n in ("h100", "a100")]
    assert small.options == {"mode": "training", "seq": 128}
    assert big.options == {"mode": "inference", "seq": 128, "input_specs": ("f32[3]",)}
    assert big.policies == ("memwall",)


def test_the_nearest_table_goes_first(read):
    """Command line, workload's GPU, its policy, itself, then the gate's GPU, its policy, itself."""
    text = """
        [gate]
        target = "other.py"
        gpu = ["h100-sxm", "a100-80gb-sxm"]
        policy = ["eager", "memwall"]
        kernels = 1
        flops = "+1%"
        time_s = "1 s"
        dram_bytes = "1 GB"
        peak_memory = "1 GB"
        bound_s = "1 s"
        [gate.policies.eager]
        flops = "+2%"
        time_s = "2 s"
        dram_bytes = "2 GB"
        peak_memory = "2 GB"
        bound_s = "2 s"
        [gate.gpus.h100]
        time_s = "3 s"
        dram_bytes = "3 GB"
        peak_memory = "3 GB"
        bound_s = "3 s"
        [gate.workloads.net]
        target = "net.py"
        dram_bytes = "4 GB"
        peak_memory = "4 GB"
        bound_s = "4 s"
        [gate.workloads.net.policies.eager]
        peak_memory = "5 GB"
        bound_s = "5 s"
        [gate.workloads.net.gpus.h100-sxm]
        bound_s = "6 s"
    """
    config = read(text)
    assert limits_of(config) == {
        "coverage": "100 %", "kernels": "1", "flops": "+2%", "time_s": "3 s", "dram_bytes": "4 GB",
        "peak_memory": "5 GB", "bound_s": "6 s",
    }  # fmt: skip
    assert limits_of(config, gpu="a100-80gb-sxm")["bound_s"] == "5 s"
    assert limits_of(config, gpu="a100-80gb-sxm", policy="memwall")["bound_s"] == "4 s"
    assert limits_of(config, "other", gpu="a100-80gb-sxm", policy="memwall")["bound_s"] == "1 s"
    over = GateConfig(**{**vars(config), "over": parse_scope(["bound_s=7 s", "bound_s = +1%"])})
    assert limits_of(over)["bound_s"] == "7 s +1%"


def test_modules_are_limited_apart_from_the_whole(read):
    config = read("""
        [gate]
        target = "net.py"
        kernels = 9
        [gate.modules."layers.*"]
        kernels = 3
        time_s = ["+1%", "2 ms"]
        [gate.policies.eager.modules.head]
        flops = "1 GFLOP"
    """)
    assert limits_of(config) == {
        "coverage": "100 %", "kernels": "9", "kernels@layers.*": "3", "time_s@layers.*": "+1% 2 ms",
        "flops@head": "1 GFLOP",
    }  # fmt: skip


def test_defaults_hold_where_nothing_is_limited_and_there_is_a_baseline(read):
    bare = read("[gate]\ntarget = 'net.py'")
    assert limits_of(bare) == {"coverage": "100 %"}
    assert limits_of(bare, compared=True) == {"coverage": "100 %", **DEFAULTS}
    assert "graph_breaks" not in limits_of(bare, compared=True, unknown={"graph_breaks"})
    one = read("[gate]\ntarget = 'net.py'\ntime_s = '+1%'")
    assert limits_of(one, compared=True) == {"coverage": "100 %", "time_s": "+1%"}
    # a limit that says nothing of the model's cost does not lift those that do
    for text in ("coverage = '90 %'", "measured_s = '+5%'"):
        apart = read(f"[gate]\ntarget = 'net.py'\n{text}")
        assert limits_of(apart, compared=True).items() >= DEFAULTS.items(), text


def test_limits_name_what_runs(read):
    for kind, key in (("gpu", "gpus.a100-80gb-sxm"), ("policy", "policies.inductor")):
        for table in (f"[gate.{key}]", f"[gate.workloads.net.{key}]"):
            with pytest.raises(UsageError, match=f"limits {kind} .* which nothing runs on; add it to {kind} = "):
                read(f"[gate.workloads.net]\ntarget = 'net.py'\n{table}\nkernels = 3")
    config = read("[gate.workloads.net]\ntarget = 'net.py'\npolicy = 'inductor'\n[gate.policies.inductor]\nkernels = 3")
    assert limits_of(config, policy="inductor")["kernels"] == "3"


def test_the_path_of_a_board_is_relative_to_the_file(read, tmp_path, monkeypatch):
    (tmp_path / "own.toml").write_text(spec_path("l4").read_text())
    monkeypatch.chdir("/")
    assert read("[gate]\ntarget = 'a.py'\ngpu = 'own.toml'").workloads[0].gpus[0].name == "l4"


def test_the_nearest_file_with_a_gate_is_found(tmp_path):
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    assert find_config(inner) is None or not find_config(inner).is_relative_to(tmp_path)
    (tmp_path / "pyproject.toml").write_text("[tool.memwall.gate]\n")
    (tmp_path / "a" / "pyproject.toml").write_text("[project]\nname = 'x'\n[tool.ruff]\n")
    assert find_config(inner) == tmp_path / "pyproject.toml"
    (tmp_path / "a" / "memwall.toml").write_text("[gate]\n")
    assert find_config(inner) == tmp_path / "a" / "memwall.toml"
    (inner / ".git").mkdir()  # another repository's files are none of ours
    assert find_config(inner) is None


def test_a_broken_file_on_the_way_is_said(tmp_path):
    (tmp_path / "pyproject.toml").write_text("[tool")
    with pytest.raises(UsageError, match=r"pyproject\.toml is not TOML: .*line 1|end of document"):
        find_config(tmp_path)


MISTAKES = {
    "[gate]\nkernles = 3": r"toml: \[tool.memwall.gate\]: no setting or quantity 'kernles'; did you mean kernels",
    "[gate]\ntime_s = '3 mz'": "time_s: no unit 'mz' for modeled time; did you mean ms",
    "[gate]\ngpu = 'h10'": r"memwall.toml: \[tool.memwall.gate\]: gpu: no GPU named 'h10'; did you mean h100-sxm",
    "[gate]\ngpu = [3]": "gpu is a list of texts",
    "[gate]\npolicy = 'eagr'": "no policy named 'eagr'; did you mean eager",
    "[gate.gpus.h10]\nkernels = 1": "gpus: no GPU named 'h10'; did you mean h100-sxm",
    "[gate.policies.eagr]\nkernels = 1": "no policy named 'eagr'; did you mean eager",
    "[gate.policies.eager]\nkernles = 1": "policies.eager: no quantity 'kernles'; did you mean kernels",
    "[gate.gpus.h100]\nkernels = 1\n[gate.gpus.h100-sxm]\nkernels = 2": "gpus.h100-sxm is h100-sxm, which has a table",
    "[gate]\ntime = '1 s'\ntime_s = '2 s'": "time_s is time_s, which is limited already",
    "[gate]\nbatch = '3'": "batch is str; want a whole number",
    "[gate]\nbatch = true": "batch is bool; want a whole number",
    "[gate]\ncuda_graph = 1": "cuda_graph is int; want true or false",
    "[gate]\nmode = 'train'": "mode is 'train'; want inference or training",
    "[gate]\nmode = 3": "mode is int; want text",
    "[gate]\nattention = 'fast'": "attention is 'fast'",
    "[gate]\ninput = 'f32[3]'": "input is str; want a list",
    "[gate": "is not TOML: Expected ']'",
    "[gate]\nkernels = " + "9" * 5000: "is not TOML: Exceeds the limit",
    "x = " + "[" * 5000: "is not TOML",
    b"\xff\xfe[gate]": r"is not UTF-8 text \(byte 0\)",
    "": r"has no \[tool.memwall.gate\] table",
    "[tool.memwall.gates]\n": r"has no \[tool.memwall.gate\] table",
    "gate = 3": "is no table",
    "[[gate]]\nkernels = 3": "is no table",
    "gpu = 'h100'\n[gate]\nkernels = 1": r"gpu stands outside of \[gate\]; move it there",
    "[gate]\nkernels = 1\n[tool.memwall.gate]\nkernels = 2": "two gates; keep one",
    "[gate]\nbaseline = 'x'\nbaseline_ref = 'y'": "baseline and baseline_ref are two baselines",
    "[gate]\nworkloads = ['a.py', 'b/a.py']": "two workloads have one name",
    "[gate]\nworkloads = [3]": "workloads is a list of texts",
    "[gate]\nworkloads = 'a.py'": "workloads is str; want a table or a list",
    "[gate]\nworkloads = ['*/none.py']": r"no file matches '\*/none.py'",
    "[gate]\ntarget = 'a.py'\n[gate.workloads.a]\ntarget = 'b.py'": "target and workloads have one a each",
    "[gate.workloads.x]": "has no target; want one such as target =",
    "[gate.workloads]\nx = 'a.py'": "is no table; want one with target",
    "[gate.workloads.'a/b']\ntarget = 'a.py'": "a workload's name has no / in it",
    "[gate.workloads.x]\ntarget = 'a.py'\nworkloads = []": "no setting or quantity 'workloads'",
    "[gate.workloads.x]\ntarget = 'a.py'\nbaseline = 'b'": "no setting or quantity 'baseline'",
    "[gate]\ntime_s = []": "time_s is an empty list, which limits nothing",
    "[gate]\ntime_s = [[]]": "a limit is a number or text",
    "[gate]\ntime_s = 2020-01-01": "a limit is a number or text",
    "[gate.modules.'']\nkernels = 1": "an empty pattern fits no module",
    "[gate.modules.'a.*']\npeak_memory = '1 GB'": "peak_memory has no value per module; kernels, dram_bytes, flops",
    "[gate.modules.'a.*']\ncoverage = '90 %'": "coverage has no value per module",
    "[gate]\nmodules = 3": "modules: want a table per name, as in modules.NAME",
    "[gate.modules]\nx = 3": "want a table per name",
    "[gate.gpus]\nh100 = 3": "gpus: want a table per name",
}


@pytest.mark.parametrize("text", MISTAKES)
def test_a_mistake_is_one_line_with_the_way_out(read, text):
    with pytest.raises(UsageError, match=MISTAKES[text]) as caught:
        read(text)
    assert "\n" not in str(caught.value)


def test_a_file_that_cannot_be_read_is_said(tmp_path):
    with pytest.raises(UsageError, match="no such file"):
        read_config(tmp_path / "none.toml")
    with pytest.raises(UsageError, match="cannot read"):
        read_config(tmp_path)


@pytest.mark.parametrize("text", ["kernels", "=3", "kernels 3", ""])
def test_a_limit_of_the_command_line_is_name_and_limit(text):
    with pytest.raises(UsageError, match="--limit: "):
        parse_scope([text])


@pytest.mark.parametrize(("target", "name"), [
    ("profiles/bert_large/model.py", "bert_large"), ("model.py", "model"), ("nets/gpt.py", "gpt"),
    ("nets/gpt.py:small", "gpt.small"), ("profiles/a/model.py:small", "a.small"), ("a.b:Net", "a.b.Net"),
    ("saved/x.json.gz", "x"), ("x.json", "x"), ("hf:conf/llama", "llama"), ("a.b/net.py", "net"),
    ("hf:conf/llama/config.json", "llama"), ("hf:tiny.json", "tiny"), ("a.b", "a.b"),
])  # fmt: skip
def test_what_a_target_is_called(target, name):
    assert workload_name(target) == name


def test_a_pattern_names_its_files_in_order(tmp_path):
    for name in ("z.py", "a.py", "in/b.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert expand("*.py", tmp_path) == ["a.py", "z.py"]
    assert expand("**/*.py", tmp_path) == ["a.py", "in/b.py", "z.py"]
    assert expand("plain.py", tmp_path) == ["plain.py"]
