"""Reading a saved record: whatever is in the file, one line comes back, or a profile; never a crash, never code."""

import copy
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from memwall.core.errors import UsageError
from memwall.hardware.lookup import load_gpu
from memwall.record.profile import Profile
from tests.unit.report_fixture import make_profile

RECORD = make_profile().to_dict()
TEXT = make_profile().to_json()


def places(value: Any, path: tuple = ()) -> list[tuple]:
    """Paths to all keys and items of a record."""
    found = [path] if path else []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        found += places(item, (*path, key))
    return found


PLACES = places(RECORD)
ODD = st.one_of(st.none(), st.booleans(), st.integers(), st.integers(-5, 5), st.floats(), st.text(max_size=20),
                st.just({}), st.just([]), st.just(10**400), st.just(-1), st.just("1"),
                st.lists(st.integers(-3, 10**6), max_size=4),
                st.dictionaries(st.text(max_size=5), st.integers(), max_size=2))  # fmt: skip


def changed(path: tuple, value: Any) -> dict[str, Any]:
    record = copy.deepcopy(RECORD)
    at: Any = record
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return record


def dropped(path: tuple) -> dict[str, Any]:
    record = copy.deepcopy(RECORD)
    at: Any = record
    for key in path[:-1]:
        at = at[key]
    del at[path[-1]]
    return record


def loads_or_refuses(record: Any) -> None:
    try:
        profile = Profile.from_dict(record)
    except UsageError as error:
        assert "\n" not in str(error)
        assert len(str(error)) < 500
    else:
        assert isinstance(profile, Profile)
        profile.coverage  # noqa: B018  what was accepted can be used
        Profile.from_dict(profile.to_dict())


def test_a_record_comes_back_as_it_was_written(tmp_path):
    path = tmp_path / "p.json"
    make_profile().save(path)
    loaded = Profile.load(path)
    assert loaded.to_json() == TEXT
    assert loaded.simulations[0].totals == make_profile().simulations[0].totals


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(path=st.sampled_from(PLACES), value=ODD)
@example(path=("graph", "storages"), value=[[-1, "parameter"]])
@example(path=("graph", "values", "0", "shape"), value=[-1])
@example(path=("graph", "values", "0", "strides"), value="ab")
@example(path=("graph", "outputs"), value={})
@example(path=("graph", "free_calls"), value=[1])
@example(path=("graphs",), value=3)
@example(path=("graph", "ops", 0, "attributes"), value=3)
@example(path=("graph", "ops", 0, "pipes"), value={"tensor.x": True})
@example(path=("gpus",), value={"old": 3})
@example(path=("simulations", 0, "kernels", 0), value=3)
@example(path=("simulations", 0, "totals", "time_s"), value=10**400)
def test_any_value_anywhere(path, value):
    loads_or_refuses(changed(path, value))


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(path=st.sampled_from(PLACES))
def test_any_key_missing(path):
    loads_or_refuses(dropped(path))


@given(
    st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=9)),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
        max_leaves=9,
    )
)
def test_any_json_at_all(record):
    loads_or_refuses(record)
    if isinstance(record, dict):
        loads_or_refuses({**record, "schema": "memwall.profile/1"})


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.integers(0, len(TEXT) - 2), junk=st.binary(max_size=8))
def test_any_truncation_with_any_bytes_behind(tmp_path, cut, junk):
    path = tmp_path / "p.json"
    path.write_bytes(TEXT.encode()[:cut] + junk)
    with pytest.raises(UsageError) as caught:
        Profile.load(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("text", "says"), [
    ("", "not JSON"),
    ("{", "truncated"),
    ("[1, 2]", 'no "schema"'),
    ('{"schema": "memwall.profile/2"}', "newer memwall"),
    ('{"schema": "memwall.profile/99999999999"}', "newer memwall"),
    ('{"schema": "memwall.profile/0"}', "there is no schema"),
    ('{"schema": "memwall.profile/x"}', "not a memwall.profile record"),
    ('{"schema": "memwall.gate/1"}', "its schema is 'memwall.gate/1'"),
    ('{"schema": NaN}', "NaN"),
    ('{"schema": "memwall.profile/1", "a": Infinity}', "Infinity"),
    ('{"schema": "memwall.profile/1"}', "record has no 'memwall_version'"),
    ("[" * 100_000, "nested too deep"),
    ('{"a":' * 100_000, "nested too deep"),
    ("9" * 5_000, "not a memwall record"),
])  # fmt: skip
def test_what_it_says(tmp_path, text, says):
    path = tmp_path / "p.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=r"p\.json") as caught:
        Profile.load(path)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("path", "value", "says"), [
    (("simulations", 0, "totals", "peak_memory_bytes"), -1, "simulations[0].totals.peak_memory_bytes"),
    (("simulations", 0, "kernels", 0, "bound_s"), -1e-9, "simulations[0].kernels[0].bound_s"),
    (("simulations", 0, "gpu"), "nowhere", "simulations[0].gpu"),
    (("graph", "ops", 0, "outputs"), [10**6], "graph.ops[0].outputs"),
    (("graph", "ops", 0, "flops"), 1, "pipes do not add up"),
    (("graph", "ops", 1, "phase"), "sideways", "forward, backward, optimizer"),
    (("graph", "values", "0", "dtype"), "float7", "float7"),
    (("workload", "name"), None, "workload.name"),
])  # fmt: skip
def test_it_names_the_key(path, value, says):
    with pytest.raises(UsageError) as caught:
        Profile.from_dict(json.loads(json.dumps(changed(path, value))))
    assert says in str(caught.value)


@pytest.mark.defect("20", "40")
@pytest.mark.parametrize(("name", "value", "says"), [
    ("wait_s", 5.0, "is longer than the overhead_s that holds it"),
    ("compute_s", 1e18, "is longer than the kernel, its time_s and hidden_s"),
    ("memory_s", 1e18, "is longer than the kernel, its time_s and hidden_s"),
    ("time_s", 1e-320, "must be a number that is not negative"),
])  # fmt: skip
def test_seconds_that_contradict_each_other_are_refused(name, value, says):
    """The seconds of a saved kernel were read one by one: parts longer than the whole gave negative times in
    sentences, and numbers at the ends of what a float holds broke the roofline."""
    with pytest.raises(UsageError) as caught:
        Profile.from_dict(changed(("simulations", 0, "kernels", 0, name), value))
    assert f"simulations[0].kernels[0].{name} {says}" in str(caught.value)


def test_an_op_class_of_a_later_version_is_no_bug():
    """Reports put it last; planning again, which asks for the class of a fused kernel, does so too."""
    record = copy.deepcopy(RECORD)
    for op in record["graph"]["ops"]:
        op["class"] = "telepathy"
    profile = Profile.from_dict(json.loads(json.dumps(record)))
    assert profile.schedule(load_gpu("h100"), "memwall").kernels


def test_a_hundred_megabytes_of_nesting(tmp_path):
    path = tmp_path / "deep.json"
    path.write_text("[" * 100_000_000, encoding="ascii")
    with pytest.raises(UsageError, match="nested too deep"):
        Profile.load(path)


def test_a_folder_and_a_binary_file(tmp_path):
    with pytest.raises(UsageError, match="cannot read"):
        Profile.load(tmp_path)
    binary = tmp_path / "b.json"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="not UTF-8"):
        Profile.load(binary)
    with pytest.raises(UsageError, match="no such file"):
        Profile.load(tmp_path / "none.json")
