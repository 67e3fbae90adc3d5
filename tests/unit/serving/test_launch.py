"""Command lines of engines → options, and back."""

import json

import pytest

from memwall.core.errors import UsageError
from memwall.core.question import completed
from memwall.serving.launch import launch_line, read_launch
from memwall.serving.launch.command import LINES as ENGINES
from memwall.serving.launch.command import find_command
from memwall.serving.question import ServeOptions
from tests.unit.serving.launch_lines import LINES

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")


@pytest.mark.parametrize(("engine", "line", "options"), LINES, ids=[line[:60] for _, line, _ in LINES])
def test_what_a_line_sets(engine, line, options):
    assert read_launch(line).options == {name: value for name, value in options.items() if value is not None}


@pytest.mark.parametrize(("engine", "line", "options"), LINES, ids=[line[:60] for _, line, _ in LINES])
def test_the_inverse_gives_an_equal_server(engine, line, options):
    read = read_launch(line)
    again = read_launch(launch_line(engine, read.model, read.options))
    server, same = (completed(ServeOptions, each.options) for each in (read, again))
    server["engine"], same["engine"] = (each["engine"].partition("@")[0] for each in (server, same))
    assert same == server and again.model == read.model


def test_sixty_lines():
    assert len(LINES) == 60


#: command lines with a load balancer of experts
BALANCED = [
    ("vllm serve m -dp 8 -ep --enable-eplb", 0),
    ("""vllm serve m -dp 8 -ep --enable-eplb --eplb-config '{"num_redundant_experts": 32, "window_size": 1000}'""", 32),
    ("vllm serve m -tp 8 --enable-expert-parallel --enable-eplb --num-redundant-experts 16", 16),
    ("vllm serve m -dp 8 -ep --eplb-config.num_redundant_experts 32", None),
    ("sglang serve --model-path m --tp 16 --ep 16 --enable-eplb --ep-num-redundant-experts 32", 32),
    ("sglang serve --model-path m --tp 16 --ep 16 --ep-num-redundant-experts 32", None),
]


@pytest.mark.parametrize(("line", "copies"), BALANCED, ids=[line for line, _ in BALANCED])
def test_copies_of_experts_are_those_of_a_load_balancer(line, copies):
    """And they are written as they were read."""
    read = read_launch(line)
    assert read.options.get("redundant") == copies
    assert read_launch(launch_line(read.engine, "m", read.options)).options == read.options
    named = [each for each in read.flags if "redundant" in each.flag]
    assert all(each.sets == "redundant" if copies else "--enable-eplb" in each.why for each in named)


def test_slots_of_a_load_balancer_are_experts_and_copies(tmp_path):
    """288 slots of 256 experts hold 32 copies; that no configuration says how many experts there are is told."""
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.json").write_text('{"n_routed_experts": 256}')
    (tmp_path / "c.yaml").write_text("moe_config:\n  load_balancer: {num_slots: 288, layer_updates_per_iter: 1}\n")
    line = f"trtllm-serve {tmp_path / 'm'} --tp_size 8 --ep_size 8 --config {tmp_path / 'c.yaml'}"
    options = read_launch(line).options
    assert options == {"engine": "trtllm", "tp": 8, "ep": 8, "redundant": 32, "utilization_of": "free"}
    written = launch_line("trtllm", f"hf:{tmp_path / 'm'}", options)
    assert json.loads(written.split("'")[1]) == {"moe_config": {"load_balancer": {"num_slots": 288}}}
    assert launch_line("trtllm", "m", options).endswith("# a load balancer of 32 more slots than there are experts")
    elsewhere = read_launch(line.replace(str(tmp_path / "m"), "m")).flags
    assert ["the model's configuration" in each.why for each in elsewhere if "num_slots" in each.flag] == [True]
    (tmp_path / "c.yaml").write_text("moe_config: {load_balancer: {num_slots: 128}}\n")
    with pytest.raises(UsageError, match="fewer than the 256 experts"):
        read_launch(line)


@pytest.mark.parametrize(("dtype", "said"), [("bf16", "--dtype bfloat16"), ("fp64", "# a checkpoint in float64")])
def test_a_dtype_is_written_by_the_name_that_the_engine_has(dtype, said):
    """A short name ended serve --dtype bf16 as a bug of memwall."""
    assert said in launch_line("vllm", "m", {"dtype": dtype})


@pytest.mark.parametrize("engine", ENGINES)
def test_each_engine_says_a_server(engine):
    """Options of memwall → words of each engine → the same options, but for what only one engine counts so."""
    asked = {"tp": 2, "dp": 1, "pp": 2, "kv": "fp8", "max_batch": 32, "token_budget": 2048, "max_context": 4096,
             "draft": "mtp", "draft_tokens": 2, "captured": (1, 2, 4)}  # fmt: skip
    read = read_launch(launch_line(engine, "hf:DIR", asked)).options
    assert {name: read.get(name, 1) for name in asked} == asked


@pytest.mark.parametrize(
    ("engine", "options", "said"),
    [
        ("vllm", {"weights": "nvfp4"}, "# a checkpoint with weights in nvfp4"),
        ("trtllm", {"weights": "fp8"}, "# a checkpoint with weights in fp8"),
        ("vllm", {"tp": 8, "ep": 4}, "# whole experts on 4 of 8 GPUs"),
        ("trtllm", {"tp": 2, "dp": 4}, "# 4 groups of 2 GPUs that attend to sequences of their own"),
        ("trtllm", {"prefill": "apart"}, "# prompts in steps of their own"),
        ("trtllm", {"prefill": "chunked"}, " --enable_chunked_prefill"),
        ("vllm", {"prefill": "whole"}, " --no-enable-chunked-prefill"),
        ("sglang", {"prefill": "whole"}, "# whole prompts, next to decodes"),
        ("sglang", {"prefill": "apart"}, "--model-path DIR"),
        ("vllm", {"tp": 2, "dp": 4, "replicas": 3}, "# 3 of these, behind a router"),
        ("sglang", {"replicas": 3}, " --dp-size 3"),
    ],
)
def test_what_an_engine_does_not_say_stands_behind_its_line(engine, options, said):
    assert launch_line(engine, "hf:DIR", options).endswith(said)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("vllm serve m -tp 8 --tensor-parallel-size 4", "-tp 8 and --tensor-parallel-size 4 contradict each other"),
        ("vllm serve a --model b", "a and --model b contradict each other"),
        ("vllm serve m --enforce-eager --cudagraph-capture-sizes 1 2", "CUDA graphs are turned off"),
        ("vllm serve m --quantization fb8", "did you mean fp8?"),
        ("vllm serve m --kv-cache-dtype fp9", "vLLM's --kv-cache-dtype fp9"),
        ("vllm serve m --tensor-paralel-size 8", "no --tensor-paralel-size; did you mean tensor-parallel-size?"),
        ("vllm serve m --max-num-seqs many", "want a whole number above 0"),
        ("vllm serve m --max-num-seqs 0", "want a whole number above 0"),
        ("vllm serve m --gpu-memory-utilization 1.5", "want a share above 0 and up to 1"),
        ("vllm serve m --max-num-seqs", "--max-num-seqs wants a whole number above 0 behind it"),
        ("vllm serve m --max-num-seqs --enforce-eager", "--max-num-seqs wants a whole number above 0 behind it"),
        ("vllm serve m --speculative-config '{\"method\": '", "is no JSON"),
        ("vllm serve m --tensor-parallel-size $TP", "a variable whose value is not known"),
        ("vllm serve m --config nowhere.yaml", "nowhere.yaml"),
        ("vllm serve 'm", "a quote is not closed"),
        ("ollama run m", "no command of an engine is there"),
        ("vllm serve m\ntrtllm-serve m", "2 commands of engines (vLLM and TensorRT-LLM)"),
        ("python -m sglang.launch_server --model m --tp 4 --dp 3 --enable-dp-attention", "divided by the 3 groups"),
    ],
)  # fmt: skip
def test_a_line_that_is_wrong(line, said):
    with pytest.raises(UsageError) as error:
        read_launch(line)
    assert said in str(error.value) and "\n" not in str(error.value)


def flags(line, **where):
    return {each.flag: each for each in read_launch(line, **where).flags}


def test_a_flag_that_is_not_modeled_is_named_with_the_reason():
    found = flags("vllm serve m --attention-backend FLASHINFER --cpu-offload-gb 10 --kv-cache-dtype nvfp4")
    assert "attention" in found["--attention-backend FLASHINFER"].why
    assert "GPU's memory alone" in found["--cpu-offload-gb 10"].why
    assert "4 bits" in found["--kv-cache-dtype nvfp4"].why


def test_a_flag_of_no_table_is_named():
    assert flags("vllm serve m --zebra 3")["--zebra 3"].why == "memwall does not know it"


def test_a_variable_of_the_engine_is_named():
    assert "not read" in flags("VLLM_USE_DEEP_GEMM=1 vllm serve m")["VLLM_USE_DEEP_GEMM=1"].why


def test_a_secret_is_not_repeated():
    assert "token" not in str(read_launch("VLLM_API_KEY=token vllm serve m --api-key token").flags)


def test_guesses_of_a_head_are_named_flag_by_flag():
    found = flags('vllm serve m --speculative-config \'{"method": "eagle3", "model": "h"}\'')
    assert all("eagle3" in each.why for each in found.values()) and len(found) == 2


def test_groups_that_do_not_share_attention_are_replicas():
    found = flags("sglang serve --model-path m --dp 2")["--dp 2"]
    assert (found.sets, found.value) == ("replicas", "2")


def test_the_row_of_a_flag_has_the_value_in_the_end():
    found = flags("sglang serve --model-path m --tp 8 --dp 4 --enable-dp-attention")
    assert [(found[flag].sets, found[flag].value) for flag in ("--tp 8", "--dp 4")] == [("tp", "2"), ("dp", "4")]


def test_the_version_is_the_tag_of_the_image():
    assert read_launch("docker run vllm/vllm-openai:v0.11.0 --model m").version == "0.11.0"
    assert read_launch("docker run vllm/vllm-openai:latest --model m").version == ""


@pytest.mark.parametrize(
    ("image", "engine"),
    [
        ("vllm/vllm-openai:v0.11.0", "vllm@0.11.0"),
        ("vllm/vllm-openai:v0.10.2rc1", "vllm@0.10.2"),
        ("vllm/vllm-openai:latest", "vllm"),
        ("vllm/vllm-openai:nightly-5b8c30d62b75", "vllm"),
        ("vllm/vllm-openai:v0.8.5", "vllm"),
        ("vllm/vllm-openai:v99.0", "vllm"),
    ],
)
def test_the_tag_of_an_image_says_the_version_of_the_engine(image, engine):
    assert read_launch(f"docker run {image} --model m").options["engine"] == engine


@pytest.mark.parametrize(("version", "is_told"), [("v0.8.5", True), ("v0.9.0", False), ("v99.0", True)])
def test_a_version_that_is_not_known_is_told(version, is_told):
    notes = read_launch(f"docker run vllm/vllm-openai:{version} --model m").notes
    assert any("may differ" in note for note in notes) == is_told


def test_a_version_may_be_said_next_to_a_line_without_one():
    assert read_launch("vllm serve m").merged({"engine": "vllm@0.10"})["engine"] == "vllm@0.10"


@pytest.mark.parametrize(
    ("line", "engine"), [("vllm serve m", "sglang"), ("docker run vllm/vllm-openai:v0.11.0 --model m", "vllm@0.12")]
)
def test_another_engine_than_that_of_the_line_is_refused(line, engine):
    with pytest.raises(UsageError, match="say engine otherwise: leave one out"):
        read_launch(line).merged({"engine": engine})


# -- configuration files, scripts, images and manifests ----------------------------------------------------------------


def test_flags_win_over_vllms_file(tmp_path):
    (tmp_path / "c.yaml").write_text("model: m\ntensor-parallel-size: 4\nmax_num_seqs: 8\ntrust-remote-code: true\n")
    read = read_launch(f"vllm serve --config {tmp_path / 'c.yaml'} --tensor-parallel-size 2")
    assert read.options == {"engine": "vllm", "tp": 2, "max_batch": 8} and read.model == "m"


def test_the_file_wins_over_trtllms_flags(tmp_path):
    (tmp_path / "c.yaml").write_text("tensor_parallel_size: 4\n")
    assert read_launch(f"trtllm-serve m --tp_size 2 --config {tmp_path / 'c.yaml'}").options["tp"] == 4


#: what a script says before and as the arguments of vllm serve → what that sets
ARGUMENTS = [
    ('ARGS="-tp 2 --max-num-seqs 32"', "$ARGS", {"tp": 2, "max_batch": 32}),
    ('ARGS="-tp 2"\nARGS+=" --enforce-eager"\nEMPTY=""', '$ARGS $EMPTY "$@"', {"tp": 2, "eager": True}),
    ("ARGS=(-tp 2  # not one\n  --max-num-seqs 32\n)\nARGS+=(--enforce-eager)", '"${ARGS[@]}"',
     {"tp": 2, "max_batch": 32, "eager": True}),
    ("N=2\nlocal ARGS=(-tp \"$N\" --served-model-name 'a b')", "${ARGS[*]}", {"tp": 2}),
    ('NAME="a -tp 8"', '--served-model-name "$NAME" -tp ${N:=2}', {"tp": 2}),
    ('if [ -n "$X" ]; then EXTRA="--enforce-eager"; fi', "-tp 2 $EXTRA", {"tp": 2, "eager": True}),
    ("# don't ask", "-tp 2  # it's enough", {"tp": 2}),
]  # fmt: skip


@pytest.mark.parametrize(("before", "arguments", "options"), ARGUMENTS, ids=[each for _, each, _ in ARGUMENTS])
def test_variables_are_words_as_in_a_shell(tmp_path, before, arguments, options):
    (path := tmp_path / "run.sh").write_text(f"{before}\nvllm serve m {arguments}\n")
    assert read_launch(path).options == {"engine": "vllm"} | options


def test_arguments_that_are_not_known_are_said():
    with pytest.raises(UsageError, match=r"^\$\{ARGS\[@\]\}: a variable whose value is not known"):
        read_launch('vllm serve m "${ARGS[@]}"')


def test_what_is_no_yaml_is_told_in_words(tmp_path):
    (path := tmp_path / "serve.yaml").write_text("a: [1\n")
    with pytest.raises(UsageError, match=r"is no YAML: expected ',' or ']', but got .* \(at line 2\)$"):
        read_launch(path)


def test_a_script_with_variables_and_comments(tmp_path):
    script = tmp_path / "run.sh"
    script.write_text(
        "#!/bin/bash\nset -e\n# four GPUs\nexport TP=4  # or eight\nMODEL=org/name\n"
        "vllm serve $MODEL --tensor-parallel-size ${TP} --max-num-seqs ${SEQS:-16} \\\n    --enforce-eager &\nwait\n"
    )
    read = read_launch(script)
    assert read.options == {"engine": "vllm", "tp": 4, "max_batch": 16, "eager": True} and read.model == "org/name"


def test_where_a_script_writes_is_no_model(tmp_path):
    (tmp_path / "run.sh").write_text("vllm serve m -tp 2 > server.log 2>&1 &\n")
    assert read_launch(tmp_path / "run.sh").model == "m"


def test_a_model_whose_name_is_not_known_here():
    """TARGET says where its configuration lies."""
    assert read_launch("vllm serve $MODEL -tp 2").model == "$MODEL"


def test_a_shell_within_words():
    assert read_launch(["docker", "run", "x", "bash", "-lc", "vllm serve m -tp 2"]).options["tp"] == 2


@pytest.mark.parametrize(
    "text",
    [
        'FROM vllm/vllm-openai:v0.10.2\nENV HF_HOME=/data\nCMD ["--model", "m", "--tensor-parallel-size", "2"]\n',
        'FROM ubuntu\nENTRYPOINT ["vllm", "serve"]\nCMD ["m", \\\n  "-tp", "2"]\n',
        "FROM nvidia/cuda:12.8.0-base\nENV TP 2\nCMD vllm serve m --tensor-parallel-size $TP\n",
    ],
)
def test_a_dockerfile(tmp_path, text):
    (tmp_path / "Dockerfile").write_text(text)
    read = read_launch(tmp_path / "Dockerfile")
    assert read.options["tp"] == 2 and read.engine == "vllm" and read.model == "m"


def manifest(**container):
    spec = {"containers": [{"name": "proxy", "image": "envoy:v1", "args": ["-l", "info"]}, container]}
    return yaml.safe_dump_all(
        [{"kind": "Service"}, {"kind": "Deployment", "spec": {"replicas": 1, "template": {"spec": spec}}}]
    )


@pytest.mark.parametrize(
    "container",
    [
        {"image": "vllm/vllm-openai:v0.11.0", "args": ["--model", "m", "--tensor-parallel-size=2"]},
        {"image": "mine", "command": ["vllm", "serve"], "args": ["m", "-tp", "2"]},
        {"image": "mine", "command": ["/bin/sh", "-c"], "args": ["vllm serve m --tensor-parallel-size 2"]},
        {"image": "mine", "command": ["vllm", "serve", "m", "-tp", "$(TP)"], "env": [{"name": "TP", "value": "2"}]},
    ],
)
def test_a_manifest_of_kubernetes(tmp_path, container):
    (tmp_path / "pod.yaml").write_text(manifest(**container))
    read = read_launch(tmp_path / "pod.yaml")
    assert read.options["tp"] == 2 and read.engine == "vllm"


def test_a_file_of_compose(tmp_path):
    service = {"image": "vllm/vllm-openai:v0.11.0", "command": "--model m --max-num-seqs 8", "environment": ["A=1"]}
    (tmp_path / "compose.yml").write_text(yaml.safe_dump({"services": {"llm": service}}))
    read = read_launch(tmp_path / "compose.yml")
    assert read.options == {"engine": "vllm@0.11.0", "max_batch": 8}


def test_a_manifest_that_is_no_yaml(tmp_path):
    (tmp_path / "pod.yaml").write_text("a: [")
    with pytest.raises(UsageError, match="is no YAML"):
        read_launch(tmp_path / "pod.yaml")


def test_every_start_is_found():
    for line in ENGINES.values():
        for start in line.starts:
            assert find_command(" ".join((*start, "--port", "1"))).line is line


# -- quantisation ------------------------------------------------------------------------------------------------------


@pytest.fixture
def checkpoint(tmp_path):
    def made(**stated):
        (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", **stated}))
        return f"hf:{tmp_path}"

    return made


def test_a_checkpoint_that_is_quantised_stays_so(checkpoint):
    where = checkpoint(quantization_config={"quant_method": "fp8"})
    assert read_launch("vllm serve m --quantization fp8", where).options["weights"] == "model"


def test_weights_are_quantised_as_they_are_loaded(checkpoint):
    assert read_launch("vllm serve m --quantization fp8", checkpoint()).options["weights"] == "fp8"


def test_another_format_than_the_checkpoints_is_refused(checkpoint):
    where = checkpoint(quantization_config={"quant_method": "gptq"})
    with pytest.raises(UsageError, match="states gptq"):
        read_launch("vllm serve m --quantization fp8", where)


def test_a_format_that_the_checkpoint_has_not_is_refused(checkpoint):
    with pytest.raises(UsageError, match="states none"):
        read_launch("vllm serve m --quantization awq", checkpoint())
