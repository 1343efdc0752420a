"""Under a path of a reverse proxy, everything works as at the root."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urljoin

import httpx2 as httpx
import openai
import pytest
from browser import BROWSER, page
from live import Live, live
from proxy import proxied

from infinipot.server.root_path import OWN, checked

PATH = "/some/prefix"
WEB = Path(__file__).parents[2] / "infinipot" / "server" / "web"


@pytest.fixture(scope="module")
def server() -> Iterator[Live]:
    with live({"root_path": PATH}) as here:
        yield here


@contextmanager
def shown(server: Live, strip: bool) -> Iterator[httpx.Client]:
    with (
        proxied(server.url, PATH, strip) as url,
        httpx.Client(base_url=url, timeout=180, verify=False) as client,
    ):
        yield client


@pytest.mark.parametrize("strip", [True, False], ids=["stripped", "whole"])
def test_pages_and_what_they_load(server: Live, strip: bool) -> None:
    with shown(server, strip) as client:
        for name in ("/", "/docs"):
            reply = client.get(name)
            assert reply.status_code == 200
            links = re.findall(r'(?:src|href)="([^"]+)"', reply.text)
            assert len(links) >= 3
            for link in links:
                assert client.get(urljoin(str(reply.url), link)).status_code == 200, link
        assert client.get("/openapi.json").json()["servers"] == [{"url": PATH}]


@pytest.mark.parametrize("strip", [True, False], ids=["stripped", "whole"])
def test_the_interface(server: Live, strip: bool) -> None:
    with shown(server, strip) as client:
        made = client.put("/v1/pots/book", content=b"The keeper hid the letter. " * 30)
        assert made.status_code == 201
        events = client.get("/v1/pots/book/events")
        assert events.text.endswith("data: [DONE]\n\n")
        assert events.headers["x-accel-buffering"] == "no"
        assert client.get("/ready").status_code == client.get("/metrics").status_code == 200
        answer = openai.OpenAI(
            base_url=f"{client.base_url}v1", api_key="none", http_client=client
        ).chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "Who?"}], stream=True,
            extra_body={"pot": "book"}, max_tokens=5,
        )  # fmt: skip
        pieces = list(answer)
        assert pieces[-1].choices[0].finish_reason == "length"
        assert client.delete("/v1/pots/book").status_code == 200


def test_without_the_slash_and_without_the_proxy(server: Live) -> None:
    """Links of a page are relative to its folder. Probes ask the server itself."""
    reply = server.http.get(f"{PATH}?a=b")
    assert (reply.status_code, reply.headers["location"]) == (308, f"{PATH}/?a=b")
    assert reply.headers["x-request-id"]
    assert server.http.get("/health").status_code == 200
    assert server.http.get("/some/prefixes/health").status_code == 404
    assert server.http.get("/some/other/health").status_code == 404


def test_a_key_is_asked_for_under_the_path() -> None:
    with live({"root_path": PATH}, api_key="secret") as here:
        assert here.http.get(f"{PATH}/v1/models").status_code == 401
        assert here.http.get(f"{PATH}/v1/pots").status_code == 401
        for open_path in ("/", "/page/app.js", "/docs", "/health"):
            assert here.http.get(f"{PATH}{open_path}").status_code == 200
        told = here.http.get(f"{PATH}/v1/models", headers={"Authorization": "Bearer secret"})
        assert told.status_code == 200


def test_no_file_of_the_page_asks_the_root() -> None:
    for path in [*WEB.glob("*.*"), *WEB.glob("vendor/*.js")]:
        text = path.read_text()
        assert not re.findall(r'(?:src|href|action)="/|url\(["\']?/', text), path.name
        assert not re.findall(r'(?:fetch|import|EventSource)\(\s*["`]/|from "/', text), path.name


def test_paths_that_cannot_be(server: Live) -> None:
    assert (checked(""), checked("/"), checked("/a/b.c/")) == ("", "", "/a/b.c")
    for path in ("a", "/a//b", "/a/../b", "/a b", "/a?b", "/a#b", "/ä", "https://a/b", "/."):
        with pytest.raises(ValueError, match="must begin with / .* for example /infinipot"):
            checked(path)
    routes = {path.split("/")[1] for path in server.http.get("/openapi.json").json()["paths"]}
    assert {*routes, "docs", "openapi.json", "page"} - {""} == {*OWN}
    for name in OWN:
        with pytest.raises(ValueError, match="a path of the server itself"):
            checked(f"/{name}/more")


@pytest.mark.skipif(BROWSER is None, reason="no Chromium here")
def test_the_page_in_a_browser(server: Live, tmp_path: Path) -> None:
    with proxied(server.url, PATH, True) as url, page(f"{url}/", tmp_path) as here:
        here.look(1280, 800)
        here.until("!document.getElementById('send').disabled")
        here.run("document.getElementById('question').focus()")
        here.write("Hello")
        here.press("Enter", "\r")
        here.until("document.querySelectorAll('.message.assistant small').length === 1")
        loaded = "performance.getEntriesByType('resource').map(e => new URL(e.name).pathname)"
        assert all(path.startswith(f"{PATH}/") for path in here.run(loaded))
        assert not here.errors
