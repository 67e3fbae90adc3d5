"""``memwall mcp`` as the official client of the protocol's SDK meets it, and as a hostile one does."""

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.unit.commands import MODEL
from tests.unit.configs import SHORT_LLAMA, target_of
from tests.unit.places import ROOT
from tests.unit.processes import HANGS_S, is_alive, wait_for

pytest.importorskip("mcp", reason="needs the extra mcp: the protocol's SDK")

import anyio
import httpx2
from anyio.from_thread import start_blocking_portal
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

HANDLE = re.compile(r"memwall://record/[0-9a-f]{16}")
#: a model of which a line runs when it is made, as what a client's file may do
BAD = """\
import os, socket, subprocess, time
import torch

def model():
    {line}
    return torch.nn.ReLU()

def inputs():
    return (torch.zeros(2),)
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """The folder of a server, with models in it; what lies beside it is not for clients."""
    top = tmp_path_factory.mktemp("mcp")
    folder = top / "folder"
    folder.mkdir()
    (folder / "model.py").write_text(MODEL)
    (top / "secret.py").write_text(MODEL)
    (top / "secret.toml").write_text("SECRET = 1\n")
    (folder / "link.py").symlink_to(top / "secret.py")
    lines = {
        "slow": "p = subprocess.Popen(['sleep', '600'], start_new_session=True).pid; "
        "open('slow.pid', 'w').write(f'{os.getpid()} {p}'); time.sleep(600)",
        "large": "kept = [bytearray(1 << 28) for _ in range(64)]",
        "gone": "os._exit(0)",
        "crash": "os.kill(os.getpid(), 11)",
        "reads": f"open({str(top / 'secret.toml')!r})",
        "connects": "socket.create_connection(('127.0.0.1', 9))",
        "kills": "os.kill(os.getppid(), 9)",
        "prints": "print('{\"jsonrpc\": \"2.0\"}'); os.write(1, b'not the protocol')",
    }
    for name, line in lines.items():
        (folder / f"{name}.py").write_text(BAD.format(line=line))
    return folder


def command(place: Path, *more: str) -> list[str]:
    return ["-m", "memwall", "mcp", "--folder", str(place), "--memory-limit", "3", *more]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


class Caller:
    """A client whose calls wait, from a thread without an event loop."""

    def __init__(self, portal, client) -> None:
        self.portal, self.client = portal, client

    def ask(self, function, *arguments, **keywords):
        return self.portal.call(lambda: function(*arguments, **keywords))

    def call(self, tool: str, **given):
        """The answer of a tool; the error's line where it is one."""
        made = self.ask(self.client.call_tool, tool, given)
        return made.content[0].text if made.is_error else made.structured_content


@contextmanager
def calling(server, **how):
    with ExitStack() as stack:
        portal = stack.enter_context(start_blocking_portal())
        yield Caller(portal, stack.enter_context(portal.wrap_async_context_manager(Client(server, **how))))


@pytest.fixture(scope="module")
def caller(place):
    """A client of a server on standard input and output."""
    server = StdioServerParameters(command=sys.executable, args=command(place), env=environment())
    with calling(server) as made:
        yield made


@pytest.fixture(scope="module")
def profiled(caller):
    return caller.call("profile", target="model.py", gpu=["h100-sxm"])


# -- a client that means well ------------------------------------------------------------------------------------------


def test_it_lists_its_tools_with_schemas(caller):
    listed = caller.ask(caller.client.list_tools).tools
    assert [tool.name for tool in listed] == [
        "bound",
        "profile",
        "explain",
        "fuse",
        "compare",
        "serve",
        "gpus",
        "trace",
    ]
    assert all(tool.input_schema["type"] == tool.output_schema["type"] == "object" for tool in listed)


def test_profile_answers_with_figures_and_a_handle(profiled):
    assert [row["gpu"] for row in profiled["figures"]] == ["h100-sxm"]
    assert profiled["record_schema"] == "memwall.profile/1" and HANDLE.fullmatch(profiled["record"])


def test_an_answer_is_as_the_command_prints_it(profiled, caller, run, place):
    record = json.loads(run("profile", place / "model.py", "--gpu", "h100-sxm", "--json").out)
    kept = json.loads(caller.ask(caller.client.read_resource, profiled["record"]).contents[0].text)
    assert kept["simulations"] == record["simulations"] and kept["verdicts"] == record["verdicts"]


def test_bound_takes_an_expression_and_judges_a_time(caller):
    """2 x 4096 x 4096 x 8192 FLOPs at the 989.4 TFLOP/s of the datasheet take 277.8 us."""
    matmul = "mm(bf16[4096,8192], bf16[8192,4096])"
    (row,) = caller.call("bound", target=matmul, gpu=["h100-sxm"], measured="400us", policy=["eager"])["figures"]
    assert row["bound_s"] == 277.8e-6 and row["measured_possible"] is True
    (row,) = caller.call("bound", target=matmul, gpu=["h100-sxm"], measured="150us", policy=["eager"])["figures"]
    assert row["measured_possible"] is False


def test_an_expression_may_divide(caller):
    assert caller.call("bound", target="f32[8,1024] / 2", gpu=["h100-sxm"], policy=["eager"])["figures"]


def test_explain_takes_a_handle(caller, profiled):
    answer = caller.call("explain", target=profiled["record"], explain=["relu"])
    assert "limited by" in answer["answer"] and answer["details"][0]["name"] == "aten.relu"


def test_compare_puts_a_record_on_other_gpus(caller, profiled):
    answer = caller.call("compare", targets=[profiled["record"]], gpu=["h100-sxm", "a100-80gb-sxm"])
    assert [row["label"] for row in answer["figures"]] == ["h100-sxm", "a100-80gb-sxm"]


def test_fuse_has_a_row_for_each_policy(caller):
    answer = caller.call("fuse", target="model.py", gpu=["h100-sxm"], policy=["memwall", "ideal"], no_capture=True)
    assert [row["policy"] for row in answer["figures"]] == ["eager", "memwall", "ideal"]
    assert all(row["rule"] and row["reason"] for row in answer["details"])


def test_serve_has_a_row_for_each_load(caller, place):
    target_of(place / "llama", SHORT_LLAMA)
    answer = caller.call("serve", target="hf:llama", gpu=["h100-sxm"], concurrency=[1, 4], closed_form=True)
    assert len(answer["figures"]) == 2 and all(row["tpot_s"] > 0 for row in answer["figures"])


def test_serve_takes_the_command_of_a_server_and_a_file_with_it(caller, place):
    target_of(place / "llama", SHORT_LLAMA)
    line, load = "vllm serve llama --max-num-seqs 4", {"gpu": ["h100-sxm"], "concurrency": [4], "closed_form": True}
    (place / "serve.sh").write_text(f"{line}\n")
    asked = caller.call("serve", target=line, **load), caller.call("serve", launch="serve.sh", **load)
    assert asked[0]["figures"] == asked[1]["figures"] != []


def test_gpus_has_the_numbers_of_a_gpu(caller):
    (row,) = caller.call("gpus", names=["h100-sxm"])["figures"]
    assert row["dram_bytes_per_s"] == 3.35e12  # the datasheet's 3.35 TB/s


def test_trace_reads_a_profilers_trace(caller, place):
    events = [
        {"ph": "X", "cat": "cpu_op", "name": "aten::relu", "pid": 1, "tid": 1, "ts": 0, "dur": 5,
         "args": {"External id": 1, "Input Dims": [[1 << 20]], "Input type": ["float"], "Input Strides": [[1]]}},
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": 1, "dur": 2,
         "args": {"External id": 1, "correlation": 7}},
        {"ph": "X", "cat": "kernel", "name": "relu_kernel", "pid": 0, "tid": 7, "ts": 10, "dur": 6,
         "args": {"External id": 1, "correlation": 7, "device": 0, "stream": 7}},
    ]  # fmt: skip
    device = {"id": 0, "name": "NVIDIA H100 80GB HBM3"}
    (place / "trace.json").write_text(json.dumps({"traceEvents": events, "deviceProperties": [device]}))
    (row,) = caller.call("trace", target="trace.json")["figures"]
    assert (row["gpu"], row["measured_s"]) == ("h100-sxm", 6e-6)


def test_every_answer_has_at_most_2_kb(caller):
    everything = caller.call("gpus")
    assert len(json.dumps(everything, separators=(",", ":"), ensure_ascii=False).encode()) <= 2_000
    assert everything["left_out"]["figures"] > 10


def test_the_rest_is_under_the_handle(caller, profiled):
    text = caller.ask(caller.client.read_resource, f"{profiled['record']}/text/1").contents[0].text
    assert "Top kernels by time" in text
    assert profiled["record"] in [each.uri for each in caller.ask(caller.client.list_resources).resources]


def test_a_schema_of_a_record_is_a_resource(caller):
    schema = json.loads(caller.ask(caller.client.read_resource, "memwall://schema/profile").contents[0].text)
    assert schema["title"].startswith("memwall.profile/1")


def test_a_call_tells_how_far_it_is(caller):
    told = []

    async def tell(progress, total, message):
        told.append(message)

    caller.ask(caller.client.call_tool, "profile", {"target": "model.py"}, progress_callback=tell)
    assert any(message.startswith("tracing") for message in told)


def test_nothing_is_written_into_the_folder(caller, place):
    caller.call("compare", targets=["model.py"], gpu=["h100-sxm"])
    assert not (place / ".memwall").exists() and not (place / "__pycache__").exists()


def test_the_loop_of_the_docs_answers_as_they_show(caller, place):
    """Each call of docs/agents.md in order; an answer has at least what is shown of it."""
    pytest.importorskip("triton", reason="a kernel of the page is compiled by Triton")
    page = (ROOT / "docs" / "agents.md").read_text(encoding="utf-8")
    found = re.findall(r'^```(\w+) title="([\w.]+)"\n(.*?)^```$', page, re.MULTILINE | re.DOTALL)
    answer: dict = {}
    for language, title, text in found:
        if language == "python":
            (place / title).write_text(text)
        elif title == "answer":
            shown = json.loads(text)
            assert {key: answer[key] for key in shown} == shown
        elif language == "json" and title != "mcp.json":
            answer = caller.call(title, **json.loads(text.replace("RECORD", answer.get("record", ""))))
    assert [title for _, title, _ in found].count("answer") == 8


# -- a client that does not --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("tool", "given", "said"), [
    ("profile", {"target": "/etc/passwd"}, "leads out of the folder"),
    ("profile", {"target": "../secret.py"}, "leads out of the folder"),
    ("profile", {"target": "link.py"}, "leads out of the folder"),
    ("profile", {"target": "link.py:model"}, "leads out of the folder"),
    ("profile", {"target": "hf:/etc"}, "leads out of the folder"),
    ("profile", {"target": "model.py", "gpu": ["../secret.toml"]}, "leads out of the folder"),
    ("profile", {"target": "model.py", "host": "../secret.toml"}, "leads out of the folder"),
    ("serve", {"target": "model.py", "trace": "/etc/passwd"}, "leads out of the folder"),
    ("serve", {"target": "model.py", "draft": "os:getcwd"}, "is no file below the folder"),
    ("serve", {"target": "vllm serve ../secret.py"}, "leads out of the folder"),
    ("serve", {"target": "vllm serve . --config=/etc/passwd"}, "leads out of the folder"),
    ("serve", {"target": "vllm serve org/name"}, "org/name"),
    ("serve", {"launch": "../secret.py"}, "leads out of the folder"),
    ("serve", {"launch": "vllm serve llama"}, "is no file below the folder"),
    ("serve", {}, "name a TARGET"),
    ("trace", {"target": "model.py", "ncu": "/etc/passwd"}, "leads out of the folder"),
    ("profile", {"target": "memwall://record/../../secret"}, "no record"),
    ("profile", {"target": "os:getcwd"}, "is no file below the folder"),
    ("bound", {"target": "open('/etc/passwd')"}, "torch has no op 'open'"),
    ("bound", {"target": "open('secret.toml')"}, "torch has no op 'open'"),
    ("bound", {"target": "mm.__class__(1)"}, "a tensor has no op '__class__'"),
    ("bound", {"target": "../f(x)/model.py:model"}, "leads out of the folder"),
    ("bound", {"csv": "/etc/passwd"}, "leads out of the folder"),
    ("bound", {}, "name one TARGET"),
    ("profile", {"target": ["model.py"]}, "is not of type 'string'"),
    ("profile", {"target": {"a": 1}}, "is not of type 'string'"),
    ("profile", {"target": None}, "is not of type 'string'"),
    ("profile", {"target": "a" * 1_000_000}, "1,000,000 are more than 20,000"),
    ("profile", {"target": "a" * 20_000}, "is no file below the folder"),
    ("profile", {"target": "model.py", "gpu": ["h10"]}, "no GPU named 'h10'"),
    ("profile", {"target": "model.py", "output": ["x.json"]}, "no option named 'output'"),
    ("fuse", {"target": "model.py", "emit": "x"}, "no option named 'emit'"),
    ("profile", {"target": "--output=x.json"}, "is no file below the folder"),
    ("profile", {}, "'target' is a required property"),
    ("trace", {"target": "model.py"}, "not what trace reads"),
    ("nothing", {}, "no tool named 'nothing'"),
    ("profile", {"target": "reads.py"}, "lies outside of the folder"),
    ("profile", {"target": "connects.py"}, "a call has no network"),
    ("profile", {"target": "gone.py"}, "the process ended with exit code 0"),
    ("profile", {"target": "crash.py"}, "SIGSEGV"),
    ("profile", {"target": "large.py"}, "MemoryError"),
])  # fmt: skip
def test_a_hostile_call_gets_an_error_in_a_line(caller, tool, given, said):
    error = caller.call(tool, **given)
    assert isinstance(error, str) and said in error and "\n" not in error


@pytest.mark.parametrize("uri", ["file:///etc/passwd", "memwall://record/../../secret", "memwall://schema/../x"])
def test_no_resource_is_a_file(caller, uri):
    with pytest.raises(MCPError, match=r"no (resource|record|schema)"):
        caller.ask(caller.client.read_resource, uri)


def test_a_model_that_kills_what_answers_stops_no_further_call(caller):
    assert "the process that answers ended" in caller.call("profile", target="kills.py")
    assert caller.call("gpus", names=["h100-sxm"])["figures"]


def test_an_error_names_a_record_by_its_handle(caller, profiled):
    compared = caller.call("compare", targets=[profiled["record"]], gpu=["h100-sxm", "a100-80gb-sxm"])
    error = caller.call("explain", target=compared["record"], explain=["relu"])
    assert error.startswith(f"{compared['record']} is not a memwall.profile record")


def test_what_a_model_prints_is_no_message(caller):
    assert caller.call("profile", target="prints.py", gpu=["h100-sxm"])["figures"]


def test_a_hundred_calls_at_once_are_all_answered(caller):
    async def all_of_them():
        found = []

        async def one():
            found.append(await caller.client.call_tool("gpus", {"names": ["h100-sxm"]}))

        async with anyio.create_task_group() as group:
            for _ in range(100):
                group.start_soon(one)
        return found

    found = caller.portal.call(all_of_them)
    assert len(found) == 100 and not any(each.is_error for each in found)


def test_a_call_that_is_cancelled_ends_its_process_and_what_that_has_started(caller, place):
    async def cancelled():
        async with anyio.create_task_group() as group:
            group.start_soon(caller.client.call_tool, "profile", {"target": "slow.py"})
            pids = await anyio.to_thread.run_sync(wait_for, lambda: (place / "slow.pid").read_text().split())
            group.cancel_scope.cancel()
        return map(int, pids)

    pids = list(caller.portal.call(cancelled))
    wait_for(lambda: not any(map(is_alive, pids)))
    assert caller.call("gpus", names=["h100-sxm"])["figures"]  # it answers still


#: how a client begins
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}},
}


def test_lines_that_are_no_messages_end_nothing(place):
    lines = ["not JSON", "[]", '{"jsonrpc": "1.0"}', "\x00\xff", '{"jsonrpc": "2.0", "id": {}, "method": 3}',
             json.dumps(INITIALIZE)]  # fmt: skip
    done = subprocess.run(
        [sys.executable, *command(place)], input="\n".join(lines) + "\n", capture_output=True, text=True,
        env=environment(), check=False, timeout=HANGS_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (answer,) = [made for made in map(json.loads, done.stdout.splitlines()) if made.get("id") == 1]
    assert answer["result"]["serverInfo"]["name"] == "memwall"


def test_a_signal_while_it_ends_is_said_in_a_line(place):
    """A client closes its end, and asks the server to end before that has stopped its processes."""
    process = subprocess.Popen(
        [sys.executable, *command(place)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, env=environment(),
    )  # fmt: skip
    process.stdin.write(f"{json.dumps(INITIALIZE)}\n")
    process.stdin.flush()
    assert "serverInfo" in process.stdout.readline()
    process.stdin.close()
    process.send_signal(signal.SIGTERM)
    ended = (process.wait(timeout=HANGS_S), process.stderr.read())
    assert ended in ((143, "memwall: ended by SIGTERM\n"), (0, ""))  # the second: it was over before the signal came
    process.stdout.close()
    process.stderr.close()


def test_a_call_that_takes_too_long_is_ended(place):
    server = StdioServerParameters(command=sys.executable, args=command(place, "--time-limit", "15"), env=environment())
    with calling(server) as caller:
        assert "longer than 15 s" in caller.call("profile", target="slow.py")
    pids = [int(pid) for pid in (place / "slow.pid").read_text().split()]
    wait_for(lambda: not any(map(is_alive, pids)))


# -- on other systems --------------------------------------------------------------------------------------------------


def elsewhere(like: str) -> dict[str, str]:
    """The variables of a process on a system that lacks what Linux has."""
    return {
        **os.environ,
        "PYTHONPATH": f"{Path(__file__).parent / 'elsewhere'}{os.pathsep}{ROOT}",
        "MEMWALL_LIKE": like,
    }


def test_each_call_has_a_process_where_none_can_fork(place):
    server = StdioServerParameters(command=sys.executable, args=command(place), env=elsewhere("macos"))
    with calling(server) as caller:
        for _ in range(2):
            assert caller.call("profile", target="model.py", gpu=["h100-sxm"])["figures"]
        assert "lies outside of the folder" in caller.call("profile", target="reads.py")


def test_it_is_refused_in_a_line_where_no_process_has_children(place):
    ran = [sys.executable, *command(place)]
    done = subprocess.run(ran, env=elsewhere("windows"), capture_output=True, text=True, check=False, timeout=HANGS_S)
    assert done.returncode == 3
    assert done.stderr.count("\n") == 1 and "needs Linux or macOS; use WSL here" in done.stderr


# -- over HTTP ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def address(place):
    """The address and the token of a server over HTTP."""
    process = subprocess.Popen(
        [sys.executable, *command(place, "--transport", "http")], stderr=subprocess.PIPE, text=True, env=environment()
    )
    said = re.search(r"(http://127\.0\.0\.1:\d+/mcp); Authorization: Bearer (\S+)", process.stderr.readline())
    yield said[1], said[2]
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=HANGS_S) in (143, -signal.SIGTERM)
    process.stderr.close()


@pytest.mark.parametrize("mode", ["legacy", "auto"], ids=["with a handshake", "without"])
def test_it_answers_over_http_who_has_the_token(address, mode):
    url, token = address
    client = httpx2.AsyncClient(headers={"Authorization": f"Bearer {token}"}, timeout=HANGS_S)
    with calling(streamable_http_client(url, http_client=client), mode=mode) as caller:
        assert caller.call("gpus", names=["h100-sxm"])["figures"]


PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
ACCEPT = {"Accept": "application/json, text/event-stream"}


@pytest.mark.parametrize(("headers", "status"), [
    ({}, 401),
    ({"Authorization": "Bearer guess"}, 401),
    ({"Authorization": "Basic guess"}, 401),
    ({"Authorization": "Bearer {token}", "Host": "evil.example"}, 421),
    ({"Authorization": "Bearer {token}", "Origin": "http://evil.example"}, 403),
])  # fmt: skip
def test_nobody_else_gets_an_answer(address, headers, status):
    url, token = address
    sent = {name: value.format(token=token) for name, value in headers.items()}
    assert httpx2.post(url, json=PING, headers={**ACCEPT, **sent}).status_code == status


def test_a_request_that_is_too_long_is_refused(address):
    url, token = address
    headers = {**ACCEPT, "Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    assert httpx2.post(url, content=b" " * (2 << 20), headers=headers).status_code == 413


# -- the command -------------------------------------------------------------------------------------------------------


def test_a_folder_that_is_not_there_is_refused(run):
    assert run("mcp", "--folder", "nowhere").error == "there is no folder nowhere"


def test_a_port_is_of_http(run):
    assert run("mcp", "--port", "1").error == "--port has no effect without --transport http"


def test_without_the_sdk_it_says_which_extra_to_install(shell, folder):
    (folder / "sitecustomize.py").write_text(
        textwrap.dedent("""
        import sys
        sys.modules["mcp"] = None
    """)
    )
    ran = shell("mcp", env={"PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"})
    assert ran.code == 3
    assert ran.error == "this needs mcp, which is not installed: pip install 'memwall-roofline[mcp]'"
