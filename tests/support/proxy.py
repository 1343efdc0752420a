"""A reverse proxy that shows a server under a path, in a thread."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

HOP = {"connection", "transfer-encoding", "server", "date"}
"""Headers of one connection only, and those that a proxy writes itself."""


class Handler(BaseHTTPRequestHandler):
    """Hands on what is under the path, head and body as they come. Answers 502 for all else."""

    upstream = ""
    path_shown = ""
    strip = True

    def handle_one_request(self) -> None:
        self.raw_requestline = self.rfile.readline(65537)
        if self.raw_requestline and self.parse_request():
            self.forward()
        self.close_connection = True

    def forward(self) -> None:
        inside = self.path.startswith(f"{self.path_shown}/") or self.path == self.path_shown
        if not inside:
            self.send_error(502, f"{self.path} is not under {self.path_shown}")
            return
        target = self.path
        if self.strip:
            target = target.removeprefix(self.path_shown) or "/"
        connection = http.client.HTTPConnection(self.upstream, timeout=180)
        size = int(self.headers.get("content-length", 0))
        headers = {name: value for name, value in self.headers.items() if name.lower() not in HOP}
        connection.request(self.command, target, self.rfile.read(size), headers)
        reply = connection.getresponse()
        self.send_response(reply.status)
        for name, value in reply.getheaders():
            if name.lower() not in HOP:
                self.send_header(name, value)
        self.send_header("connection", "close")
        self.end_headers()
        while piece := reply.read1(65536):
            self.wfile.write(piece)
            self.wfile.flush()
        connection.close()

    def log_message(self, *args: object) -> None:
        pass


@contextmanager
def proxied(url: str, path: str, strip: bool) -> Iterator[str]:
    """Where the server at `url` is shown under `path`. strip: whether the proxy takes it off."""
    names = {"upstream": url.removeprefix("http://"), "path_shown": path, "strip": strip}
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Own", (Handler,), names))
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}{path}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
