"""What is kept between runs: data, never code, of this user alone."""

import os
import stat
from pathlib import Path

import pytest

from tests.unit.commands import MODEL


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MEMWALL_CACHE", str(tmp_path / "deep" / "cache"))
    return tmp_path / "deep" / "cache"


def test_a_result_is_made_again_where_its_sources_differ(cache: Path, tmp_path: Path) -> None:
    from memwall.core.cache import remembered

    source, made = tmp_path / "a.toml", []

    def make() -> list[str]:
        made.append(source.read_text())
        return ["the first line", str(len(made))]

    for content, number in (("a", "1"), ("a", "1"), ("b", "2"), ("a", "3")):  # the newest alone is kept
        source.write_text(content)
        assert [*remembered("numbers", [source], make)] == ["the first line", number]
    assert made == ["a", "b", "a"]


def test_without_a_cache_a_result_is_made_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from memwall.core.cache import remembered

    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MEMWALL_CACHE", str(tmp_path / "file"))
    made: list[int] = []
    for _ in range(2):
        remembered("numbers", [], lambda: made.append(1) or [])
    assert made == [1, 1]


@pytest.mark.defect("46")
@pytest.mark.parametrize("umask", [0o000, 0o022])
def test_what_is_kept_is_for_this_user_alone(umask: int, cache: Path, tmp_path: Path) -> None:
    """The folders of caches were made with whatever rights the umask left, so that others could write in them."""
    import memwall

    (tmp_path / "mlp.py").write_text(MODEL, encoding="utf-8")
    before = os.umask(umask)
    try:
        memwall.sweep(str(tmp_path / "mlp.py"), {"gpu": ["h100"]}, workers=0)
    finally:
        os.umask(before)
    kept = [cache.parent, cache, *cache.rglob("*")]
    assert len(kept) > 3
    assert {stat.S_IMODE(path.stat().st_mode) & 0o077 for path in kept} == {0}


@pytest.mark.defect("46")
def test_a_changed_file_is_made_again(cache: Path, tmp_path: Path) -> None:
    """A number that was changed in a cached trace changed the results in silence."""
    import memwall

    (tmp_path / "mlp.py").write_text(MODEL, encoding="utf-8")
    first = memwall.sweep(str(tmp_path / "mlp.py"), {"gpu": ["h100"]}, workers=0)
    (entry,) = (cache / "traces").iterdir()
    whole = entry.read_bytes()
    entry.write_bytes(whole.replace(b"Linear", b"Lineal").replace(b"float32", b"float16"))
    assert entry.read_bytes() != whole
    assert memwall.sweep(str(tmp_path / "mlp.py"), {"gpu": ["h100"]}, workers=0).equals(first)
    assert entry.read_bytes() == whole  # the trace was made again


def test_a_text_is_kept_whole_or_not_at_all(cache: Path) -> None:
    from memwall.core.cache import keep, kept

    path = cache / "a.kept"
    assert kept(path) is None
    keep(path, "two\nlines \u00e9")
    assert kept(path) == "two\nlines \u00e9"
    for damage in (b"", b"cut off", path.read_bytes()[:-1], b"\xff\xfe"):
        path.write_bytes(damage)
        assert kept(path) is None


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="files have no owners here")
@pytest.mark.parametrize("others", ["file", "folder", "owner"])
def test_what_others_may_write_is_neither_read_nor_written(
    others: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from memwall.core.cache import keep, kept, refused

    path = cache / "a.kept"
    keep(path, "mine")
    if others == "owner":
        monkeypatch.setattr("os.geteuid", lambda: os.getuid() + 1)
        monkeypatch.setattr("memwall.core.cache._TRUSTED", ())
    else:
        (path if others == "file" else cache).chmod(0o777)
    assert kept(path) is None
    if others == "folder":
        assert refused(cache) == "others may write there"
        keep(path, "theirs?")
        assert path.read_text().endswith("\nmine")
