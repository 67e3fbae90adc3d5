"""Values ↔ text that runs no code when it is read."""

import json
from pathlib import Path

import pytest

import memwall
from memwall.hardware import lookup
from tests.unit.commands import MODEL


def types_of(value: object) -> object:
    """The type of everything in a value: equal tuples and named tuples differ here."""
    if isinstance(value, dict):
        return dict, [(types_of(k), types_of(v)) for k, v in value.items()]
    if isinstance(value, (tuple, list)):
        return type(value), [types_of(each) for each in value]
    return type(value)


VALUES = [
    None, True, 1, 1.0, "1", (), [], {}, (1, True, 1.0, "1", None), [(1,), [1], (1,), [1]], {(1, 2): {3: "a"}, "b": ()},
    frozenset((1, 2)), 1e300 * 10, 2**90, {"a\nb": "\u00e9\x1b"},
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_plain_values_come_back_as_they_were(value: object) -> None:
    from memwall.core.packed import pack, unpack

    found = unpack(pack(value))
    assert found == value and types_of(found) == types_of(value)


def test_what_may_be_changed_is_not_shared() -> None:
    from memwall.core.packed import pack, unpack

    one, two = unpack(pack(([1], [1])))
    one.append(2)
    assert two == [1]


def test_every_gpu_comes_back_as_it_was() -> None:
    from memwall.core.packed import pack, unpack

    for gpu in lookup.all_gpus():
        found = unpack(pack(gpu))
        assert found == gpu and repr(found) == repr(gpu) and found.to_dict() == gpu.to_dict()


def test_a_profile_comes_back_as_it_was(tmp_path: Path) -> None:
    from memwall.core.packed import pack, unpack

    (tmp_path / "mlp.py").write_text(MODEL, encoding="utf-8")
    made = memwall.profile(str(tmp_path / "mlp.py"), gpu=["h100", "p100"], mode="training", policy=["eager", "memwall"])
    found = unpack(pack(made))
    assert found == made and found.to_json() == made.to_json()
    assert [repr(op) for op in found.graph.ops] == [repr(op) for op in made.graph.ops]


@pytest.mark.parametrize(
    "name", ["os:system", "memwall.core.files:write_whole", "memwall.core.files:Path", "os:stat_result"]
)
def test_nothing_but_a_record_of_memwall_is_made(name: str) -> None:
    from memwall.core.packed import unpack

    with pytest.raises(ValueError, match=r"is not of memwall|has no fields"):
        unpack(json.dumps([[name], [[4, "touch /tmp/ran"], [0, [0]]]]))


@pytest.mark.parametrize("value", [object(), {1: b""}, len, Path("a")], ids=["object", "bytes", "function", "path"])
def test_what_is_no_data_is_refused(value: object) -> None:
    from memwall.core.packed import pack

    with pytest.raises(TypeError, match="is not kept"):
        pack(value)
