"""The server of records: who gets an answer, and what its answers have."""

import http.client
import re
import threading
from base64 import b64encode
from hashlib import sha256

import pytest

from memwall.browsing.run import RecordFolder
from memwall.browsing.server import RecordServer
from tests.unit.processes import HANGS_S
from tests.unit.report_fixture import make_profile


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Of a folder with two profiles, in a thread."""
    place = tmp_path_factory.mktemp("records")
    make_profile(name="tiny").save(place / "a.json")
    make_profile(name="short", blocks=1).save(place / "b.json")
    with RecordServer(RecordFolder(place)) as made:
        thread = threading.Thread(target=made.serve_forever)
        thread.start()
        yield made
        made.shutdown()
        thread.join()


@pytest.fixture
def ask(server):
    """``ask(path)``: status, headers and text of an answer; ``host`` and ``method`` as given."""

    def go(path: str, host: str | None = None, method: str = "GET"):
        connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=HANGS_S)
        headers = {"Host": f"127.0.0.1:{server.server_port}" if host is None else host}
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read().decode()

    return go


def numbers(page: str) -> list[str]:
    return [part.partition('"')[0] for part in page.split('href="record?n=')[1:]]


def test_the_list_the_records_and_a_comparison_are_pages(server, ask):
    top = f"/{server.token}/"
    code, _, page = ask(top)
    first, second = numbers(page)
    assert code == 200 and 'form="compare"' in page
    assert "<title>Records in " in page
    assert {ask(f"{top}record?n={n}")[2].partition("<title>")[2].partition(" ")[0] for n in (first, second)} == {
        "tiny", "short",
    }  # fmt: skip
    assert "<title>compare: " in ask(f"{top}compare?n={first}&n={second}")[2]


def test_an_address_that_lacks_its_last_slash_leads_to_the_list(server, ask):
    """Links of the list are relative to it."""
    code, headers, _ = ask(f"/{server.token}")
    assert (code, headers["Location"]) == (301, f"/{server.token}/")


@pytest.mark.parametrize("path", ["/", "//", "/x/", "/{other}/", "/{other}/record?n=1", "/{token}x/", "/../{token}/"])
def test_who_has_not_the_token_gets_nothing(server, ask, path):
    code, _, text = ask(path.format(token=server.token, other="A" * len(server.token)))
    assert (code, text) == (403, "the address lacks the token that memwall open has printed")


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "", "[::1]:{port}"]
)
def test_another_host_gets_nothing_even_with_the_token(server, ask, host):
    """A page of another site that has its own name lead to this machine would read the answers."""
    code, _, text = ask(f"/{server.token}/", host=host.format(port=server.server_port))
    assert (code, text) == (403, "this host is not served")


def test_localhost_is_served(server, ask):
    assert ask(f"/{server.token}/", host=f"localhost:{server.server_port}")[0] == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "HEAD", "PATCH"])
def test_nothing_but_get_is_served(server, ask, method):
    code, headers, text = ask(f"/{server.token}/", method=method)
    assert code == 501 and "Access-Control-Allow-Origin" not in headers
    assert text == ("" if method == "HEAD" else "only GET is served")


@pytest.mark.parametrize("page", [
    "record", "record?n=99", "record?n=1&n=2", "record?n=-1", "record?n=1&x=2", "record?n=1e3", "record?n=" + "9" * 40,
    "record?n=../a.json", "record/../../a.json", "a.json", "..%2fa.json", "compare", "compare?n=1", "%00",
])  # fmt: skip
def test_a_page_that_is_none_is_said_to_be_none(server, ask, page):
    code, headers, text = ask(f"/{server.token}/{page}")
    assert code == 404 and headers["Content-Type"] == "text/html; charset=utf-8"
    assert "No such page" in text and 'href="./"' in text


def test_answers_run_no_script_of_others_and_leak_no_address(server, ask):
    for path in (f"/{server.token}/", "/"):
        headers = ask(path)[1]
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy and "form-action 'self'" in policy and "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert headers["Referrer-Policy"] == "no-referrer" and headers["Cache-Control"] == "no-store"
        assert headers["X-Content-Type-Options"] == "nosniff" and "Access-Control-Allow-Origin" not in headers


@pytest.mark.parametrize("page", ["", "record?n=1", "record?n=99"])
def test_the_header_allows_the_scripts_and_styles_of_the_page_alone(server, ask, page):
    """The hash of each script and style of the page, as a browser takes it of what stands between the tags."""
    _, headers, text = ask(f"/{server.token}/{page}")
    policy = dict(part.strip().split(" ", 1) for part in headers["Content-Security-Policy"].split(";"))
    for tag in ("style", "script"):
        inside = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        hashes = {f"'sha256-{b64encode(sha256(each.encode()).digest()).decode()}'" for each in inside}
        assert hashes and set(policy[f"{tag}-src"].split()) == hashes


def test_a_bug_of_one_page_leaves_the_server_alive(server, ask, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(RecordFolder, "page", lambda self, number: 1 / 0)
        code, _, text = ask(f"/{server.token}/record?n=1")
        assert code == 500 and "ZeroDivisionError" in text
    assert ask(f"/{server.token}/")[0] == 200


def test_it_listens_on_this_machine_alone_and_each_server_has_a_token(server, tmp_path):
    assert server.server_address[0] == "127.0.0.1"
    with RecordServer(RecordFolder(tmp_path)) as other:
        assert other.token != server.token and len(other.token) == 32  # 24 bytes in base64
