"""A headless Chromium, driven through its DevTools protocol."""

from __future__ import annotations

import base64
import itertools
import json
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

BROWSER = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)


class Page:
    def __init__(self, socket: ClientConnection) -> None:
        self.socket, self.numbers = socket, itertools.count(1)
        self.errors: list[str] = []
        """What the page's scripts complained about."""
        for domain in ("Page", "Runtime", "Log"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self.numbers)
        self.socket.send(json.dumps({"id": number, "method": method, "params": params}))
        while True:
            message = json.loads(self.socket.recv(timeout=30))
            if message.get("method") == "Runtime.exceptionThrown":
                self.errors.append(json.dumps(message["params"]["exceptionDetails"])[:500])
            if (
                message.get("method") == "Log.entryAdded"
                and message["params"]["entry"]["level"] == "error"
            ):
                self.errors.append(
                    message["params"]["entry"]["text"]
                    + " "
                    + message["params"]["entry"].get("url", "")
                )
            if message.get("id") == number:
                assert "error" not in message, message
                return message["result"]

    def go(self, url: str) -> None:
        """Load a page anew."""
        self.send("Page.navigate", url=url)
        self.until("document.readyState === 'complete' && location.href !== 'about:blank'")

    def run(self, script: str) -> Any:
        """The value of an expression; promises are waited for."""
        answer = self.send(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def until(self, script: str, timeout_s: float = 30) -> Any:
        """Wait until an expression is true."""
        end = time.monotonic() + timeout_s
        while not (value := self.run(script)):
            assert time.monotonic() < end, (
                f"{script} did not become true; the page says: {self.run('document.body.innerText')[:600]}"
            )
            time.sleep(0.03)
        return value

    def press(self, key: str, text: str = "", modifiers: int = 0) -> None:
        code = {"Enter": 13, "Tab": 9, "Escape": 27}.get(key, 0)
        for kind in ("keyDown", "keyUp"):
            down = {"text": text} if text and kind == "keyDown" else {}
            self.send(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                code=key,
                windowsVirtualKeyCode=code,
                modifiers=modifiers,
                **down,
            )

    def write(self, text: str) -> None:
        self.send("Input.insertText", text=text)

    def look(self, width: int, height: int, dark: bool = False) -> None:
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 800,
        )
        self.send(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}],
        )

    def picture(self, path: Path) -> None:
        path.write_bytes(
            base64.b64decode(self.send("Page.captureScreenshot", format="png")["data"])
        )


class Browser:
    """A running browser. Its tabs share what a site keeps, but for what belongs to a tab."""

    def __init__(self, port: str) -> None:
        self.address = f"http://127.0.0.1:{port}/json"

    @contextmanager
    def tab(self, url: str) -> Iterator[Page]:
        """A page that has been loaded, in a tab of its own."""
        request = urllib.request.Request(f"{self.address}/new?about:blank", method="PUT")
        target = json.load(urllib.request.urlopen(request))
        with connect(target["webSocketDebuggerUrl"], max_size=None) as socket:
            here = Page(socket)
            here.go(url)
            yield here
        urllib.request.urlopen(f"{self.address}/close/{target['id']}").close()


@contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """profile: an empty folder."""
    assert BROWSER is not None
    command = [
        BROWSER,
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--no-first-run",
        "--remote-debugging-port=0",
    ]
    child = subprocess.Popen(
        [*command, f"--user-data-dir={profile}", "about:blank"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        ready = profile / "DevToolsActivePort"
        end = time.monotonic() + 30
        while not (ready.exists() and ready.read_text().count("\n")):
            assert time.monotonic() < end and child.poll() is None, "the browser did not start"
            time.sleep(0.05)
        yield Browser(ready.read_text().split()[0])
    finally:
        child.terminate()
        child.wait(10)


@contextmanager
def page(url: str, profile: Path) -> Iterator[Page]:
    """A page that has been loaded, in a browser of its own."""
    with browser(profile) as here, here.tab(url) as tab:
        yield tab
