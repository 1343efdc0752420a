"""The web page in a headless Chromium: texts are read and shaded, questions asked, nothing is lost."""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from browser import BROWSER, Browser, Page, browser
from live import Live, free_port, live, tiny

from infinipot import PotConfig, Sampling

WEB = Path(__file__).parents[2] / "infinipot" / "server" / "web"
shown = pytest.mark.skipif(
    BROWSER is None,
    reason="no Chromium here: install it to test the page (Debian's package is chromium)",
)

TEXT = "".join(
    f"The keeper hid letter {n} under the third step. Nobody saw it, but the dog did: 🐕.\n\n"
    for n in range(40)
)
FILES = """(() => {
  const data = new DataTransfer();
  for (const file of [%s]) data.items.add(file);
  dispatchEvent(new DragEvent("drop", {dataTransfer: data, cancelable: true}));
})()"""
PNG = "new File([new Uint8Array([137, 80, 78, 71, 13, 10, 26, 10, 0])], 'c<i>.png')"
ANSWERS = "document.querySelectorAll('.message.assistant:not(.waiting)').length === {}"
READY = "!document.getElementById('send').disabled"
RECORD = """globalThis.bodies = []; fetch = ((real) => (path, options = {}) => {
  if (String(path).endsWith("/v1/chat/completions")) bodies.push(JSON.parse(options.body));
  return real(path, options);
})(fetch)"""
"""Keeps what the page asks."""
FAKE = """fetch = ((real) => (path, options = {}) => {
  if (!String(path).endsWith("/v1/chat/completions")) return real(path, options);
  const event = {choices: [{delta: {content: %s}, finish_reason: "stop"}]};
  return Promise.resolve(new Response(`: read 1\\r\\n\\r\\ndata: ${JSON.stringify(event)}\\r\\n\\r\\ndata: [DONE]\\r\\n\\r\\n`));
})(fetch)"""
"""A server that gives a certain answer."""
SETTINGS = {
    "config": PotConfig(pot_size=256, chunk_tokens=64),
    "sampling": Sampling(max_tokens=20),
}


def text_file(text: str, name: str) -> str:
    return f"new File([{json.dumps(text)}], {json.dumps(name)})"


@pytest.fixture(scope="module")
def server() -> Iterator[Live]:
    with live(SETTINGS) as here:
        yield here


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as here:
        yield here


@contextmanager
def opened(chromium: Browser, server: Live) -> Iterator[Page]:
    with chromium.tab(f"{server.url}/") as here:
        here.look(1280, 800)
        here.until(READY)
        yield here


@pytest.fixture
def tab(chromium: Browser, server: Live) -> Iterator[Page]:
    with opened(chromium, server) as here:
        yield here


def texts(page: Page, selector: str) -> list[str]:
    found: list[str] = page.run(
        f"[...document.querySelectorAll({json.dumps(selector)})].map(e => e.textContent)"
    )
    return found


def click(page: Page, selector: str) -> None:
    page.run(f"document.querySelector({json.dumps(selector)}).click()")


def press(page: Page, within: str, label: str) -> None:
    """Press the button with this label."""
    page.run(
        f"[...document.querySelectorAll('{within} button')].find(b => b.textContent === '{label}').click()"
    )


def ask(page: Page, question: str, answers: int = 0) -> None:
    """answers: how many there are then; 0: do not wait."""
    page.run("document.getElementById('question').focus()")
    page.write(question)
    page.press("Enter", "\r")
    if answers:
        page.until(ANSWERS.format(answers))


def reload(page: Page) -> None:
    time.sleep(0.5)  # the browser writes in the background what was typed just now
    page.go(page.run("location.href"))
    page.until(READY)


def read(page: Page, question: str, *files: str) -> None:
    page.run(FILES % ", ".join(files))
    page.until("!document.getElementById('read').disabled")
    page.run("document.getElementById('first-question').focus()")
    page.write(question)
    page.press("Enter", "\r")
    page.until("document.getElementById('stop-reading').textContent === 'Close'")


@shown
def test_files_question_read_and_ask(server: Live, tab: Page) -> None:
    """Several files become one text behind marks, read for a question that is asked then. A reload
    keeps all of it."""
    tab.run(RECORD)
    tab.run(FILES % f"{text_file(TEXT, 'keeper.txt')}, {PNG}, {text_file('bee', 'b<b>.md')}")
    tab.until("!document.getElementById('read').disabled")
    rows = texts(tab, "#files li")
    assert [row.split()[0] for row in rows] == ["keeper.txt", "b<b>.md", "c<i>.png"]
    assert "c<i>.png is a PNG image" in rows[2]
    tab.run("document.getElementById('first-question').focus()")
    tab.write("Who hid letter 7?")
    tab.press("Enter", "\r")
    tab.until("document.querySelectorAll('mark').length > 5")
    assert tab.run("document.getElementById('send').disabled")  # while it reads
    assert 0 < tab.run("document.getElementById('progress').value") < 1
    tab.until(ANSWERS.format(1))
    (pot,) = server.http.get("/v1/pots").json()["data"]
    put = tab.run(
        "performance.getEntriesByType('resource').map(e => e.name).find(n => /question=/.test(n))"
    )
    assert f"/v1/pots/{pot['name']}?" in put
    assert "question=Who+hid+letter+7%3F" in put
    count = f"{pot['tokens_read'] - 1:,}"
    assert f"{count} of {count} tokens read" in tab.run("counts.textContent")
    text = f"[file: keeper.txt]\n\n{TEXT}\n\n[file: b<b>.md]\n\nbee"
    assert tab.run("document.getElementById('text').textContent") == text
    check_shades(server, tab, pot["name"], text)
    assert texts(tab, ".message.user .said") == ["Who hid letter 7?"]

    before = texts(tab, ".message")
    tab.run("document.getElementById('question').focus()")
    tab.write("And where")
    reload(tab)
    tab.until("document.querySelectorAll('mark').length > 5")
    assert texts(tab, ".message") == before
    assert tab.run("question.value") == "And where"
    check_shades(server, tab, pot["name"], text)
    ask(tab, "?", 2)
    note = texts(tab, ".message.assistant small")[1]
    known = int(note.split(" known")[0].split()[-1].replace(",", ""))
    assert known > pot["tokens_read"]  # the same pot, and the conversation
    assert [p["name"] for p in server.http.get("/v1/pots").json()["data"]] == [pot["name"]]

    click(tab, "#stop-reading")
    tab.until("!document.getElementById('stage').hidden")
    click(tab, "#show-earlier")
    tab.until("document.querySelectorAll('#earlier li').length === 1")
    assert texts(tab, ".open-earlier")[0].startswith("keeper.txt, b<b>.md: Who hid letter 7?")
    click(tab, ".open-earlier")
    tab.until("document.querySelectorAll('.message').length === 4")
    click(tab, "#show-earlier")
    tab.until("earlier.open")
    press(tab, "#earlier", "Delete all")
    tab.until("!document.getElementById('none-earlier').hidden")
    tab.until("fetch('/v1/pots').then(r => r.json()).then(r => r.data.length === 0)")


def check_shades(server: Live, page: Page, name: str, text: str) -> None:
    """What is shaded in the first part of the text is just what the pot keeps."""
    about = server.http.get(f"/v1/pots/{name}?places=true").json()
    page.until("document.querySelector('#text div mark') !== null")
    parts = page.run(
        "[...document.querySelector('#text div').childNodes].map(n => [n.nodeName, n.textContent])"
    )
    marked, place = set(), 0
    for kind, part in parts:
        marked |= set(range(place, place + len(part))) if kind == "MARK" else set()
        place += len(part)
    first_dog = text.index("🐕")  # up to there a character is a token
    kept = {place - about["first_place"] for place in about["places"]}
    assert {n for n in marked if n < first_dog} == {n for n in kept if 0 <= n < first_dog}


@shown
def test_what_is_on_the_screen_is_what_the_model_knows(server: Live, tab: Page) -> None:
    tab.run(RECORD)
    click(tab, "#show-settings")
    tab.run("document.querySelector('[name=max_tokens]').focus()")
    tab.write("3000")
    tab.run("document.querySelector('[name=system]').value = 'Be short.'")
    tab.press("Enter", "\r")
    tab.until("!settings.open")
    ask(tab, "One")
    tab.until("document.querySelector('.message.assistant .said')?.textContent.length > 20")
    press(tab, "#ask", "Stop")
    tab.until(ANSWERS.format(1))
    server.wait("infinipot_running", 0)
    assert "Stopped" in texts(tab, ".message.assistant small")[0]
    half = tab.run("import('./page/store.js').then(async ({Store, tab}) => { const s = new Store(); await s.open();"
                   "return (await s.load(tab.get())).messages[1].content; })")  # fmt: skip
    assert len(half) > 10
    click(tab, "#show-settings")
    tab.run("document.querySelector('[name=max_tokens]').value = 12")
    click(tab, "#settings-ok")
    ask(tab, "Two", 2)
    sent = tab.run("bodies.at(-1)")
    assert sent["max_tokens"] == 12
    assert sent["messages"] == [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": "One"},
        {"role": "assistant", "content": half},
        {"role": "user", "content": "Two"},
    ]
    press(tab, ".message.assistant:last-child", "Regenerate")
    tab.until("bodies.length === 3 && " + ANSWERS.format(2))
    assert tab.run("bodies.at(-1)") == sent
    press(tab, ".message.user", "Edit")
    tab.until("document.activeElement.value === 'One'")
    tab.write(" more")
    tab.press("Enter", "\r")
    tab.until("bodies.length === 4 && " + ANSWERS.format(1))
    assert [m["content"] for m in tab.run("bodies.at(-1).messages")] == ["Be short.", "One more"]
    tab.run("navigator.clipboard.writeText = async (text) => { globalThis.clip = text; }")
    press(tab, ".message.user", "Copy")
    tab.until("globalThis.clip === 'One more'")
    click(tab, "#show-settings")
    click(tab, "#settings-defaults")
    click(tab, "#settings-ok")
    assert tab.run("localStorage['infinipot-settings /']") == "{}"
    assert not tab.errors


HOSTILE = """# Title

Some `code`, **bold** and <script>globalThis.hit = 1</script> <img src=x onerror="globalThis.hit = 1">

![a picture](https://elsewhere.example/a.png) [click](javascript:globalThis.hit=1) [page](https://there.example/) [data](data:text/html,x)

<iframe src="https://elsewhere.example/"></iframe>
<style>body { display: none }</style>

- [x] done
- item <a href="x" id="send" onclick="hit = 1">raw</a>

```python
print("<b>")
```
"""


REASONS = """globalThis.bodies = []; fetch = ((real) => async (path, options = {}) => {
  if (!String(path).endsWith("/v1/chat/completions")) return real(path, options);
  bodies.push(JSON.parse(options.body));
  const line = (delta, end = null) => `data: ${JSON.stringify({choices: [{delta, finish_reason: end}]})}\\n\\n`;
  const parts = [line({reasoning_content: "Let me <b>see</b>. "}), line({reasoning_content: "Yes."})];
  let pipe; const stream = new ReadableStream({start(own) { pipe = own; }}), text = new TextEncoder();
  parts.forEach((part) => pipe.enqueue(text.encode(part)));
  globalThis.finish = (said) => { pipe.enqueue(text.encode(line({content: said}, "stop") + "data: [DONE]\\n\\n")); pipe.close(); };
  return new Response(stream);
})(fetch)"""
"""A server whose model reasons first, and answers when it is told to."""
WIDE = "|" + "|".join(f"heading {n}" for n in range(30)) + "|\n|" + "-|" * 30 + "\n|" + "a b|" * 30


@shown
def test_reasoning_apart_and_wide_tables(tab: Page) -> None:
    """Reasoning is open while the model reasons, closed above the answer, and not told to the model. A wide table scrolls."""
    tab.run(REASONS)
    ask(tab, "Why?")
    tab.until(
        "document.querySelector('.thought[open] div')?.textContent === 'Let me <b>see</b>. Yes.'"
    )
    tab.run(f"finish({json.dumps(WIDE)})")
    tab.until(ANSWERS.format(1))
    assert tab.run("document.querySelector('.thought').open") is False
    assert texts(tab, ".thought summary") == ["Reasoning"]
    assert "see" not in texts(tab, ".message.assistant .said")[0]
    for width in (1280, 390):
        tab.look(width, 800)
        wide = "(e => e.scrollWidth > e.clientWidth + 500)(document.querySelector('.said table'))"
        assert tab.run(wide), width
        assert tab.run("document.documentElement.scrollWidth <= innerWidth"), width
        assert tab.run("(e => e.scrollWidth <= e.clientWidth)(document.getElementById('messages'))")
    ask(tab, "And?")
    tab.until("document.querySelectorAll('.thought[open]').length === 1")
    tab.run("finish('So.')")
    tab.until(ANSWERS.format(2))
    assert (
        tab.run("JSON.stringify(bodies[1].messages.map(Object.keys))")
        == '[["role","content"],["role","content"],["role","content"]]'
    )


@shown
def test_markdown_of_answers(server: Live, tab: Page) -> None:
    tab.run(FAKE % json.dumps(HOSTILE))
    ask(tab, "<b>mine</b>", 1)
    assert texts(tab, ".message.user .said") == ["<b>mine</b>"]
    said = ".message.assistant .said"
    assert texts(tab, f"{said} h1") == ["Title"]
    assert texts(tab, f"{said} pre code") == ['print("<b>")\n']
    assert texts(tab, f"{said} .code-bar span") == ["python"]
    (whole,) = texts(tab, said)
    for words in ("<script>globalThis.hit = 1</script>", 'onerror="globalThis.hit = 1"', "<iframe", "<style>",
                  "![a picture](https://elsewhere.example/a.png)", "☑ done", '<a href="x" id="send"'):  # fmt: skip
        assert words in whole  # shown as it stands
    links = f"[...document.querySelectorAll('{said} a')].map(a => a.getAttribute('href'))"
    assert tab.run(links) == [None, "https://there.example/", None]
    tags = tab.run(
        f"[...new Set([...document.querySelectorAll('{said} *')].map(e => e.localName))]"
    )
    assert not {"script", "img", "iframe", "style"} & set(tags)
    assert tab.run("globalThis.hit") is None
    tab.run("navigator.clipboard.writeText = async (text) => { globalThis.clip = text; }")
    click(tab, ".copy-code")
    tab.until("globalThis.clip === 'print(\"<b>\")\\n'")
    render = "import('./page/markdown.js').then(({render}) => { const e = document.createElement('div'); e.append(render(%s)); return e.textContent.length; })"
    assert tab.run(render % json.dumps(">" * 20_000)) >= 0  # nested too deep for the parser
    hosts = (
        "[...new Set(performance.getEntriesByType('resource').map(e => new URL(e.name).origin))]"
    )
    assert tab.run(hosts) == [server.url]
    assert not tab.errors


@shown
def test_refused_questions_are_marked_and_asked_again(tab: Page) -> None:
    tab.run("globalThis.real = fetch; fetch = (path, options = {}) =>"
            "real(path, {...options, body: options.body?.replace?.('\"messages\"', '\"mesages\"') ?? options.body})")  # fmt: skip
    ask(tab, "Hello")
    tab.until("document.querySelector('.message.user.unread') !== null")
    (note,) = texts(tab, ".message.unread small")
    assert note.startswith("The model has not read this: ")
    assert "messages" in note
    reload(tab)
    assert texts(tab, ".message.unread small") == [note]
    tab.run(RECORD)
    press(tab, ".message.unread", "Try again")
    tab.until(ANSWERS.format(1))
    assert texts(tab, ".message.unread") == []
    assert tab.run("bodies.at(-1).messages") == [{"role": "user", "content": "Hello"}]


@shown
def test_two_tabs_with_one_conversation(chromium: Browser, server: Live, tab: Page) -> None:
    """A copied tab has the same conversation. What both say stays."""
    ask(tab, "First", 1)
    mine = tab.run("sessionStorage['infinipot-chat /']")
    with chromium.tab(f"{server.url}/docs") as other:
        other.run(f"sessionStorage['infinipot-chat /'] = {json.dumps(mine)}")
        other.go(f"{server.url}/")
        other.until(READY)
        assert texts(other, ".message.user .said") == ["First"]
        ask(other, "Second of the other", 2)
        ask(tab, "Second of mine", 2)
        for page, second in ((tab, "Second of mine"), (other, "Second of the other")):
            reload(page)
            assert texts(page, ".message.user .said") == ["First", second]


@shown
def test_by_keyboard_alone(tab: Page) -> None:
    reached = []
    for _ in range(11):
        tab.press("Tab")
        reached.append(tab.run("document.activeElement.id"))
    for name in ("show-earlier", "show-settings", "key-button", "file", "first-question", "new-chat", "question", "send"):  # fmt: skip
        assert name in reached, reached
    assert reached.index("file") < reached.index("question") < reached.index("send")
    names = tab.run("[...document.querySelectorAll('button, input, textarea, progress, canvas')].filter(e => !e.textContent.trim() "
                      "&& !e.labels?.length && !e.getAttribute('aria-label')).map(e => e.id)")  # fmt: skip
    assert names == []


@shown
def test_on_a_phone(tab: Page) -> None:
    """The question is in view before, while and after a text is read."""
    tab.look(390, 844, dark=True)
    seen = "(() => { const {top, bottom} = question.getBoundingClientRect(); return top > 0 && bottom <= innerHeight; })()"
    assert tab.run(seen)
    tab.run(FILES % ", ".join(text_file("x", f"{n}.txt") for n in range(12)))
    tab.until("!document.getElementById('read').disabled")
    tab.look(320, 600)
    assert tab.run(seen)  # on a small one, and with many files
    tab.look(390, 844, dark=True)
    tab.run("document.querySelectorAll('#files button').forEach(b => b.click())")
    read(tab, "Who?", text_file(TEXT[:1500], "a-rather-long-name-of-a-file.txt"))
    tab.until(ANSWERS.format(1))
    assert tab.run(seen)
    assert tab.run("document.documentElement.scrollWidth") <= 390
    assert tab.run("document.documentElement.scrollHeight") <= 844
    sizes = "[...document.querySelectorAll('p, button, textarea, small, #text')].map(e => parseFloat(getComputedStyle(e).fontSize))"
    assert tab.run(f"Math.min(...{sizes})") >= 12
    click(tab, "#show-text")
    assert tab.run("document.getElementById('text').clientHeight") > 50
    assert tab.run(seen)
    assert not tab.errors


@shown
def test_a_server_that_goes_away_and_comes_back(chromium: Browser) -> None:
    """The half answer and what is being typed stay; a text is read again for the next question."""
    port = free_port()
    with ExitStack() as stack:
        first = ExitStack()
        server = first.enter_context(live(SETTINGS, port=port))
        tab = stack.enter_context(opened(chromium, server))
        read(tab, "", text_file(TEXT[:700], "keeper.txt"))
        click(tab, "#show-settings")
        tab.run("document.querySelector('[name=max_tokens]').value = 100000")
        click(tab, "#settings-ok")
        other = stack.enter_context(opened(chromium, server))
        other.run(FILES % text_file(TEXT, "other.txt"))
        other.until("!document.getElementById('read').disabled")
        click(other, "#read")
        tab.send("Page.bringToFront")
        ask(tab, "Who?")
        tab.until("document.querySelector('.message.assistant .said')?.textContent.length > 10")
        assert other.run("document.getElementById('stop-reading').textContent") == "Stop"
        tab.run("question.focus()")
        tab.write("typed mean")
        server.service.close()  # as a server does that is told to stop
        first.close()
        tab.until(ANSWERS.format(1))
        half = texts(tab, ".message.assistant")[0]
        assert "the server is shutting down" in half
        tab.until("model.textContent.includes('trying again')")
        tab.write("while")
        tab.press("Enter", "\r")  # nothing is sent now, and nothing lost
        assert tab.run("question.value") == "typed meanwhile"
        check_kept(tab, half)
        other.until("counts.textContent.includes('the text will be read again')")
        stack.enter_context(live(SETTINGS, port=port))
        tab.until(READY)
        click(tab, "#show-settings")
        click(tab, "#settings-defaults")
        click(tab, "#settings-ok")
        tab.run(RECORD)
        ask(tab, "?", 2)
        assert texts(tab, ".message.user .said") == ["Who?", "typed meanwhile?"]
        assert half.startswith(tab.run("bodies.at(-1).messages[1].content")[:10])
        assert tab.run("bodies.at(-1).pot").startswith("page-")
        other.until("document.getElementById('stop-reading').textContent === 'Close'")
        assert re.search(r"^([\d,]+) of \1 tokens read", other.run("counts.textContent"))


def check_kept(page: Page, half: str) -> None:
    """What is kept is the same as what is seen."""
    kept = page.run(
        "import('./page/store.js').then(async ({Store, tab}) => {"
        "const s = new Store(); await s.open(); return await s.load(tab.get()); })"
    )
    assert kept["draft"] == "typed meanwhile"
    assert kept["messages"][1]["cut"] in half
    assert kept["sources"][0]["text"] == TEXT[:700]


@shown
def test_a_key_that_is_wrong_then_right(chromium: Browser) -> None:
    with (
        live(SETTINGS, api_key="right", max_body_bytes=100_000) as server,
        chromium.tab(f"{server.url}/") as tab,
    ):
        tab.look(1280, 800)
        for key in ("wrong", "schlüssel", "right"):
            tab.until("document.getElementById('key-dialog').open")
            tab.run("key.focus()")
            tab.run("key.select()")
            tab.write(key)
            tab.press("Enter", "\r")
            if key == "wrong":
                tab.until(
                    "document.getElementById('key-problem').textContent.includes('wrong or missing')"
                )
            elif key == "schlüssel":  # a header cannot hold it
                assert tab.run("document.getElementById('key-dialog').open && !key.validity.valid")
        tab.until(READY)
        ask(tab, "Hello", 1)
        # larger than a document may be: a plain text needs no conversion, all else is refused
        latin = "new File([new Uint8Array(150_000).fill(233)], 'b.txt')"
        tab.run(FILES % f"{text_file(40 * TEXT, 'a.txt')}, {latin}")
        tab.until("document.querySelectorAll('#files li').length === 2")
        tab.until("!document.getElementById('read').disabled")
        rows = texts(tab, "#files li")
        assert rows[0].startswith("a.txt · ")
        assert rows[1].startswith("b.txt: the body is too large: 100,000 bytes are allowed")


@shown
def test_a_model_that_is_being_loaded(chromium: Browser) -> None:
    """The page waits for it, and a text that is given meanwhile waits, too."""
    loaded = Event()

    def load() -> tuple[Any, Any]:
        loaded.wait(60)
        return tiny()

    with (
        live(SETTINGS, wait="/health", load=load) as server,
        chromium.tab(f"{server.url}/") as tab,
    ):
        tab.until(
            "model.textContent === 'the model is being loaded: try again in a moment (trying again …)'"
        )
        tab.run(FILES % text_file(TEXT[:300], "keeper.txt"))
        assert tab.run("document.getElementById('read').disabled")
        loaded.set()
        tab.until("!document.getElementById('read').disabled")
        assert texts(tab, "#files li") == ["keeper.txt · 300 characters Remove"]


@shown
def test_what_the_server_does_not_read_stays(tab: Page) -> None:
    """A question too long for a URL goes another way. This pot has no room for it: file and question
    stay. What is dropped may be a piece of text, and a long text that is pasted is one, too."""
    question = "Wér? " * 250
    tab.run("""(() => { const data = new DataTransfer(); data.setData("text/plain", "The dog saw it.");
        dispatchEvent(new DragEvent("drop", {dataTransfer: data, cancelable: true})); })()""")
    tab.until("!document.getElementById('read').disabled")
    tab.run("document.getElementById('first-question').focus()")
    tab.write(question)
    click(tab, "#read")
    tab.until("document.getElementById('stage-problem').textContent.includes('leaves no room')")
    assert texts(tab, "#files li") == ["dropped text · 15 characters Remove"]
    assert tab.run("document.getElementById('first-question').value") == question
    tab.run("document.getElementById('first-question').value = ''")
    tab.run("document.getElementById('first-question').dispatchEvent(new Event('input'))")
    click(tab, "#read")
    tab.until("document.getElementById('stop-reading').textContent === 'Close'")
    tab.until("document.getElementById('counts').textContent.startsWith('15 of 15 tokens read')")
    tab.run("globalThis.paste = (text) => { const data = new DataTransfer(); data.setData('text/plain', text);"
            "const event = new ClipboardEvent('paste', {clipboardData: data, bubbles: true, cancelable: true});"
            "question.dispatchEvent(event); return event.defaultPrevented; }")  # fmt: skip
    assert tab.run("[paste('short'), paste('x'.repeat(100_000))]") == [False, True]
    tab.until("document.querySelector('#files li')?.textContent.startsWith('pasted text · 100 k')")


@shown
def test_the_description_of_the_interface(chromium: Browser, server: Live) -> None:
    with chromium.tab(f"{server.url}/docs") as here:
        here.look(1280, 800)
        here.until("document.querySelectorAll('details').length > 10")
        paths = server.http.get("/openapi.json").json()["paths"]
        rows = here.run(
            "[...document.querySelectorAll('summary')].map(s => [s.children[0].textContent, s.children[1].textContent])"
        )
        assert rows == [
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
        tokenize = "[...document.querySelectorAll('details')].find(d => d.textContent.includes('/tokenize'))"
        here.run(f"{tokenize}.querySelector('form').requestSubmit()")
        here.until(f"{tokenize}.querySelector('pre').textContent.includes('\"count\": 5')")
        pot = "[...document.querySelectorAll('details')].find(d => d.textContent.startsWith('GET/v1/pots/{name}'))"
        here.run(f"{pot}.querySelector('form input').value = 'a b'")
        here.run(f"{pot}.querySelector('form').requestSubmit()")
        here.until(f"{pot}.querySelector('pre').textContent.startsWith('400')")
        hosts = here.run(
            "[...new Set(performance.getEntriesByType('resource').map(e => new URL(e.name).origin))]"
        )
        assert hosts == [server.url]
        assert [error for error in here.errors if "400" not in error] == []


def test_packages_of_the_page_are_as_published() -> None:
    """Each file that is not ours has its hash, its version and its licence."""
    vendor = WEB / "vendor"
    rows = re.findall(r"^\| `(\S+)` \| (\S+) [\d.]+ \|.*`([0-9a-f]{64})` \|$", (vendor / "README.md").read_text(), re.MULTILINE)  # fmt: skip
    assert {name for name, _, _ in rows} == {path.name for path in vendor.glob("*.js")}
    for name, _, digest in rows:
        assert hashlib.sha256((vendor / name).read_bytes()).hexdigest() == digest
        assert (vendor / name).with_suffix(".LICENSE").stat().st_size > 1000
