"""The web page in a headless Chromium: a text is dropped, shaded while it is read, and asked about."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import BROWSER, Page, page
from live import Live, live

from infinipot import PotConfig, Sampling

pytestmark = pytest.mark.skipif(
    BROWSER is None,
    reason="no Chromium here: install it to test the page (Debian's package is chromium)",
)

TEXT = "".join(
    f"The keeper hid letter {n} under the third step. Nobody saw it, but the dog did: 🐕.\n\n"
    for n in range(60)
)
DROP = """(() => {{
  const data = new DataTransfer();
  data.items.add(new File([{text}], "keeper.txt"));
  dispatchEvent(new DragEvent("drop", {{dataTransfer: data, cancelable: true}}));
}})()"""
SPOIL = """fetch = ((real) => (path, options = {}) =>
  real(path, {...options, body: options.body?.replace?.('"messages"', '"mesages"') ?? options.body}))(fetch)"""
LAST = "document.querySelectorAll('.message.assistant small').length === {}"


@pytest.fixture(scope="module")
def server() -> Iterator[Live]:
    with live(
        {"config": PotConfig(pot_size=512, chunk_tokens=32), "sampling": Sampling(max_tokens=30)}
    ) as here:
        yield here


@pytest.fixture
def shown(server: Live, tmp_path: Path) -> Iterator[Page]:
    with page(f"{server.url}/", tmp_path) as here:
        here.look(1280, 800)
        here.until("!document.getElementById('send').disabled")
        yield here


def test_drop_watch_ask(server: Live, shown: Page) -> None:
    assert "tiny" in shown.run("document.getElementById('model').textContent")
    shown.run(DROP.format(text=json.dumps(TEXT)))
    shown.until("document.querySelectorAll('mark').length > 5")
    assert shown.run("document.getElementById('send').disabled")  # while it reads
    assert 0 < shown.run("document.getElementById('progress').value") < 1
    shown.until("document.getElementById('stop-reading').textContent === 'Close'")
    counts = shown.run("document.getElementById('counts').textContent")
    (pot,) = server.http.get("/v1/pots").json()["data"]
    assert f"{pot['tokens_read'] - 1:,} of {pot['tokens_read'] - 1:,} tokens read" in counts
    assert f"{pot['pot']['kept']} of 512 entries" in counts
    about = server.http.get(f"/v1/pots/{pot['name']}?places=true").json()
    width, full = (
        shown.run(f"parseFloat(document.getElementById('bar-{name}').style.width)")
        for name in ("pot", "full")
    )
    assert width < full == 100
    # the first chunk of the text shades just the characters of the tokens that are kept
    shaded = shown.run(
        "[...document.querySelector('#text div').childNodes].map(n => [n.nodeName, n.textContent])"
    )
    assert (
        "".join(text for _, text in shaded)
        == TEXT[: len("".join(text for _, text in shaded).encode("utf-16-le").decode("utf-16-le"))]
    )
    marked, place = [], 0
    for kind, text in shaded:
        marked += range(place, place + len(text)) if kind == "MARK" else []
        place += len(text)
    first_dog = TEXT.index("🐕")  # up to there a character is a token
    kept = {place - about["first_place"] for place in about["places"]}
    assert {n for n in marked if n < first_dog} == {n for n in kept if 0 <= n < first_dog}

    shown.run("document.getElementById('question').focus()")
    for number, question in enumerate(("Who hid it?", "And where?"), start=1):
        shown.write(question)
        shown.press("Enter", "\r")
        shown.until(LAST.format(number))
    notes = shown.run(
        "[...document.querySelectorAll('.message.assistant small')].map(s => s.textContent)"
    )
    assert all(
        int(note.split(" tokens read now, ")[1].split()[0].replace(",", "")) >= pot["tokens_read"]
        for note in notes
    )
    assert not shown.errors
    shown.run("document.getElementById('stop-reading').click()")
    shown.until("!document.getElementById('drop').hidden")
    server.wait("infinipot_running", 0)
    shown.until("fetch('/v1/pots').then(r => r.json()).then(r => r.data.length === 0)")


def test_by_keyboard_alone(shown: Page) -> None:
    reached = []
    for _ in range(8):
        shown.press("Tab")
        reached.append(shown.run("document.activeElement.id"))
    for name in ("key-button", "file", "new-chat", "question", "send"):
        assert name in reached, reached
    assert reached.index("file") < reached.index("question") < reached.index("send")
    shown.run("document.getElementById('question').focus()")
    shown.write("Hello")
    shown.press("Enter", "\r")
    shown.until(LAST.format(1))
    names = shown.run("[...document.querySelectorAll('button, input, textarea, progress, canvas')].filter(e => !e.textContent.trim() "
                      "&& !e.labels?.length && !e.getAttribute('aria-label')).map(e => e.id)")  # fmt: skip
    assert names == []


FILES = """(() => {
  const data = new DataTransfer();
  for (const file of [%s]) data.items.add(file);
  dispatchEvent(new DragEvent("drop", {dataTransfer: data, cancelable: true}));
})()"""


def test_several_files_are_one_text_and_binaries_are_refused(shown: Page) -> None:
    shown.run(FILES % 'new File(["ant"], "a.txt"), new File(["bee"], "b.md")')
    shown.until("document.getElementById('stop-reading').textContent === 'Close'")
    text = "document.getElementById('text').textContent"
    assert shown.run(text) == "[file: a.txt]\n\nant\n\n[file: b.md]\n\nbee"
    assert shown.run("document.getElementById('file-name').textContent") == "a.txt, b.md"
    png = "new File([new Uint8Array([137, 80, 78, 71, 13, 10, 26, 10, 0])], 'c.png')"
    shown.run(FILES % f'new File(["dog"], "d.txt"), {png}')
    shown.until("document.querySelector('.message.error')?.textContent.includes('c.png is a PNG')")
    assert "ant" in shown.run(text)  # what was read stays


def test_on_a_phone(shown: Page) -> None:
    shown.look(360, 740, dark=True)
    shown.run(DROP.format(text=json.dumps(TEXT[:1500])))
    shown.until("document.getElementById('stop-reading').textContent === 'Close'")
    assert shown.run("document.documentElement.scrollWidth") <= 360
    sizes = "[...document.querySelectorAll('p, button, textarea, small, #text')].map(e => parseFloat(getComputedStyle(e).fontSize))"
    assert shown.run(f"Math.min(...{sizes})") >= 12
    assert not shown.errors


def test_the_description_of_the_interface(server: Live, tmp_path: Path) -> None:
    with page(f"{server.url}/docs", tmp_path) as here:
        here.look(1280, 800)
        here.until("document.querySelectorAll('details').length > 10")
        paths = server.http.get("/openapi.json").json()["paths"]
        shown = here.run(
            "[...document.querySelectorAll('summary')].map(s => [s.children[0].textContent, s.children[1].textContent])"
        )
        assert shown == [
            [method.upper(), path] for path, operations in paths.items() for method in operations
        ]
        chat = "[...document.querySelectorAll('details')].find(d => d.textContent.includes('/v1/chat/completions'))"
        here.run(f"{chat}.open = true")
        text = here.run(f"{chat}.innerText")
        for part in (
            "messages required",
            "pot_size",
            "Entries of the pot; not above the server's.",
            "400",
            "Answer the last message",
        ):
            assert part in text
        hosts = here.run(
            "[...new Set(performance.getEntriesByType('resource').map(e => new URL(e.name).origin))]"
        )
        assert hosts == [server.url]
        assert not here.errors


def test_errors_are_told(server: Live, shown: Page) -> None:
    shown.run(SPOIL)
    shown.run("document.getElementById('question').focus()")
    shown.write("Hello")
    shown.press("Enter", "\r")
    shown.until("document.querySelector('.message.error') !== null")
    assert "messages" in shown.run("document.querySelector('.message.error').textContent")
    shown.until("!document.getElementById('send').disabled")
