"""Hosts: their files, names and sums, and what a GPU's file or an older record says of one."""

from dataclasses import replace
from pathlib import Path

import pytest

from memwall.core.errors import UsageError
from memwall.hardware.gpu import Gpu
from memwall.hardware.host import SCHEMA, Host, HostWork, default_host, host_names, load_host
from memwall.hardware.lookup import load_gpu

OTHERS = "".join(f"{kind}_s = 0\n" for kind in HostWork._fields if kind not in ("op", "launch"))
MINE = f'schema = "{SCHEMA}"\nname = "mine"\nop_s = 2e-6\nlaunch_s = 3e-6\n{OTHERS}'


def write(folder: Path, text: str) -> Path:
    path = folder / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return path


def error_of(folder: Path, text: str) -> str:
    with pytest.raises(UsageError) as caught:
        load_host(write(folder, text))
    message = str(caught.value)
    assert "\n" not in message and "mine.toml" in message
    return message


def test_each_kind_of_work_has_its_seconds() -> None:
    seconds = {name for name in Host.__slots__ if name.endswith("_s")} - {"library_launch_s"}  # in the layer's model
    assert {f"{kind}_s" for kind in HostWork._fields} == seconds
    # an op, 2 modules, half a view and 3 launches: 1 + 2 x 10 + 0.5 x 4 + 3 x 100
    host = Host("made up", op_s=1.0, module_s=10.0, view_s=4.0, launch_s=100.0, compiled_kernel_s=7.0)
    work = HostWork(op=1, module=2, view=0.5, launch=3)
    assert host.issue_s(work) == 323.0
    assert host.split_s(work) == (123.0, 200.0, 0.0)  # two launches after the first
    assert host.split_s(HostWork(compiled_kernel=2)) == (7.0, 7.0, 0.0)
    assert host.scaled(2).issue_s(work) == 646.0


def test_a_share_of_a_lone_call_comes_after_its_launch() -> None:
    host = Host("made up", op_s=8.0, replay_s=62.0, compiled_call_s=5.0, op_after=0.25, replay_after=0.5)
    assert host.split_s(HostWork(op=1), is_lone=True) == (6.0, 0.0, 2.0)
    assert host.split_s(HostWork(replay=1), is_lone=True) == (31.0, 0.0, 31.0)
    assert host.split_s(HostWork(compiled_call=1), is_lone=True) == (5.0, 0.0, 0.0)
    assert host.split_s(HostWork(op=1)) == (8.0, 0.0, 0.0)


@pytest.mark.parametrize("name", host_names())
def test_files_state_every_number_with_its_source(name: str) -> None:
    path = Path("hardware_specs/hosts") / f"{name}.toml"
    lines = (Path(__file__).parents[3] / path).read_text(encoding="utf-8").splitlines()
    numbers = {line.partition(" ")[0] for line in lines if "  # " in line and line[0].isalpha()}
    assert numbers == {*Host.__slots__}
    host = load_host(name)
    assert host.name == name and host.is_assumed and min(host.issue_s(HostWork(*one)) for one in _ones()) > 0


def _ones():
    return [[float(i == j) for j in range(len(HostWork._fields))] for i in range(len(HostWork._fields))]


def test_a_cloud_machine_is_slower_and_within_the_range_of_a_bare_one() -> None:
    bare, cloud = load_host("bare-metal"), load_host("cloud-vm")
    assert default_host() == bare
    for one in _ones():
        ratio = cloud.issue_s(HostWork(*one)) / bare.issue_s(HostWork(*one))
        assert 1 < ratio <= 3.7  # a call of compiled code: 3.66


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    host = load_host(write(tmp_path, MINE))
    assert (host.name, host.op_s, host.launch_s, host.view_s) == ("mine", 2e-6, 3e-6, 0.0)
    assert not host.is_assumed
    assert load_host(host) is host


def test_a_file_from_before_a_kind_takes_bare_metals(tmp_path: Path) -> None:
    """What ``backward()`` itself costs is no 0 for who did not measure it."""
    older = write(tmp_path, MINE.replace("backward_s = 0\n", ""))
    assert load_host(older).backward_s == load_host("bare-metal").backward_s
    assert load_host(write(tmp_path, MINE)).backward_s == 0


def test_a_measured_host_varies_and_is_not_assumed(tmp_path: Path) -> None:
    host = load_host(write(tmp_path, MINE + "low = 0.8\nhigh = 1.25\nmeasured = true\n"))
    assert host.varies and not host.is_assumed
    assert "measured is neither true nor false" in error_of(tmp_path, MINE + "measured = 1\n")


def test_a_broken_file_says_what_is_wrong(tmp_path: Path) -> None:
    assert "did you mean op_s?" in error_of(tmp_path, MINE.replace("\nop_s", "\nops_s"))
    assert f"want {SCHEMA!r}" in error_of(tmp_path, MINE.replace(SCHEMA, "memwall.gpu/1"))
    assert "op_s must be a number that is not negative" in error_of(tmp_path, MINE.replace("2e-6", "-1"))
    assert "op_s must be a number that is not negative" in error_of(tmp_path, MINE.replace("2e-6", "'fast'"))
    assert "low and high enclose 1" in error_of(tmp_path, MINE + "low = 2.0\n")
    assert "name is not text" in error_of(tmp_path, MINE.replace('"mine"', "3"))
    for name in ('""', '" "', '"a\\nb"'):
        assert "name must be a line of text" in error_of(tmp_path, MINE.replace('"mine"', name))
    lacking = error_of(tmp_path, MINE.replace("view_s = 0\n", "").replace("launch_s = 3e-6\n", ""))
    assert "lacks view_s, launch_s; a host states the seconds of every kind of work" in lacking  # not 0 in silence
    assert "is not TOML" in error_of(tmp_path, MINE + "[")


def test_an_unknown_name() -> None:
    with pytest.raises(UsageError, match="no host named 'bare'; there is bare-metal, cloud-vm"):
        load_host("bare")


def test_the_host_of_a_record_and_of_an_older_one() -> None:
    gpu = replace(load_gpu("t4"), host=load_host("cloud-vm"))
    saved = gpu.to_dict()
    assert Gpu.from_dict(saved) == gpu
    older = {key: value for key, value in saved.items() if key != "host"} | {"dispatch_s": 5e-6}
    assert Gpu.from_dict(older).host == Host.uniform(5e-6)
    with pytest.raises(UsageError):
        Gpu.from_dict({**older, "dispatch_s": "soon"})


def test_a_gpus_file_that_states_the_time_of_an_op(tmp_path: Path) -> None:
    text = (Path(__file__).parents[3] / "hardware_specs/t4.toml").read_text(encoding="utf-8")
    path = write(tmp_path, text.replace("[host]\n", "[host]\ndispatch_s = 8e-6\n"))
    assert load_gpu(path).host == Host.uniform(8e-6)
    assert load_gpu("t4").host == default_host()
