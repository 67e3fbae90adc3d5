"""Records that a server keeps: which, how long and in which pages."""

import pytest

from memwall.core.errors import UsageError
from memwall.mcp_server import records as module
from memwall.mcp_server.records import PAGE, SCHEME, Records


@pytest.fixture
def records(tmp_path):
    return Records(tmp_path)


def test_a_record_is_read_whole_and_by_page(records):
    handle = records.handle()
    records.keep(handle, "profile", "{" + "x" * PAGE + "}", "page")
    whole, kind = records.read(handle)
    assert (len(whole), kind) == (PAGE + 2, "application/json")
    assert records.read(f"{handle}/json/2") == ("x}", "text/plain")
    assert records.read(f"{handle}/text/1") == ("page", "text/plain")


def test_no_two_handles_are_alike(records):
    assert len({records.handle() for _ in range(100)}) == 100


@pytest.mark.parametrize("rest", ["/json/3", "/json/x", "/html/1", "/json/", "/../x", "/json/-1", "/json/1/2"])
def test_a_page_that_there_is_not_is_refused(records, rest):
    handle = records.handle()
    records.keep(handle, "profile", "{}", "page")
    with pytest.raises(UsageError):
        records.read(handle + rest)


@pytest.mark.parametrize("uri", [
    f"{SCHEME}x", f"{SCHEME}../../etc/passwd", "file:///etc/passwd", "/etc/passwd", "", SCHEME, "memwall://record",
])  # fmt: skip
def test_nothing_else_is_read(records, uri):
    with pytest.raises(UsageError):
        records.read(uri)


def test_the_oldest_record_goes(records, monkeypatch, tmp_path):
    monkeypatch.setattr(module, "MOST_RECORDS", 2)
    handles = [records.handle() for _ in range(3)]
    for handle in handles:
        records.keep(handle, "profile", "{}", "page")
    assert [handle for handle, _ in records.known()] == [handles[2], handles[1]]
    assert len(list(tmp_path.iterdir())) == 4


def test_records_that_take_too_many_bytes_go(records, monkeypatch):
    monkeypatch.setattr(module, "MOST_BYTES_KEPT", 100)
    for size in (60, 30, 80):
        last = records.handle()
        records.keep(last, "profile", "x" * size, "")
    assert [handle for handle, _ in records.known()] == [last]
