"""infinipot serve"""

from __future__ import annotations

import ctypes
import os
import platform
from pathlib import Path
from typing import Annotated

import typer

from infinipot.cli.app import Model, app
from infinipot.cli.command_options import CommandOptions, takes
from infinipot.cli.options import COMMON, SERVED
from infinipot.cli.parsers import number, size, whole

M_ARENA_MAX = -8
"""The constant of this name in glibc's malloc.h."""


def few_heaps() -> None:
    """Let all threads share two heaps. This must run before there are any threads.

    glibc would give threads up to eight heaps for each core. Every heap keeps the most memory it
    ever needed, so resident memory would creep up for hours. MALLOC_ARENA_MAX overrides this.
    """
    if platform.libc_ver()[0] == "glibc" and "MALLOC_ARENA_MAX" not in os.environ:
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 2)


@app.command("serve")
@takes(SERVED, COMMON)
def serve(
    model: Model,
    options: CommandOptions,
    host: Annotated[
        str, typer.Option("--host", metavar="NAME", help="Where to listen; 0.0.0.0 is everywhere.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", parser=whole, metavar="N", help="0 takes a free one.")
    ] = 8000,
    api_key: Annotated[
        str | None,
        typer.Option(
            "--api-key",
            metavar="KEY",
            help="Ask for this key.",
        ),
    ] = None,
    pot_dir: Annotated[
        Path | None,
        typer.Option(
            "--pot-dir",
            metavar="FOLDER",
            help="Where pots go when memory has no room for them, and come back from.",
        ),
    ] = None,
    max_sessions: Annotated[
        int | None,
        typer.Option(
            "--max-sessions",
            parser=whole,
            metavar="N",
            help="Pots in memory, including those in use. "
            "[default: as many as fit, at most 256; with --ray 8]",
        ),
    ] = None,
    memory_fraction: Annotated[
        float | None,
        typer.Option(
            "--memory-fraction",
            parser=number,
            metavar="F",
            help="Part of the free memory that pots may take, if --max-sessions is not given. "
            "[default: 0.9 on a GPU, else 0.5]",
        ),
    ] = None,
    max_stall_ms: Annotated[
        float,
        typer.Option(
            "--max-stall-ms",
            parser=number,
            metavar="MS",
            help="Most time for reading other texts between two tokens of an answer.",
        ),
    ] = 250,
    queue: Annotated[
        int,
        typer.Option(
            "--queue", parser=whole, metavar="N", help="Requests that may wait; more are refused."
        ),
    ] = 64,
    max_body_mb: Annotated[
        int,
        typer.Option(
            "--max-body-mb",
            parser=whole,
            metavar="N",
            help="Largest request; streamed texts have no limit.",
        ),
    ] = 64,
    max_tokens_limit: Annotated[
        int,
        typer.Option(
            "--max-tokens-limit",
            metavar="N",
            parser=size,
            help="Longest answer that a request may ask for.",
        ),
    ] = 1 << 17,
    client_timeout: Annotated[
        float,
        typer.Option(
            "--client-timeout",
            parser=number,
            metavar="S",
            help="How long a client may send nothing of its request, "
            "or fetch nothing of its answer.",
        ),
    ] = 60,
    document_timeout: Annotated[
        float,
        typer.Option(
            "--document-timeout",
            parser=number,
            metavar="S",
            help="How long the conversion of a document (PDF, DOCX, ...) may take.",
        ),
    ] = 120,
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(
            "--allowed-host",
            metavar="NAME",
            help="Without a key: also answer requests to this host name; repeatable, * is any.",
        ),
    ] = None,
    allowed_origin: Annotated[
        list[str] | None,
        typer.Option(
            "--allowed-origin",
            metavar="URL",
            help="Pages of this site may use the server, too: https://name; repeatable, * is any.",
        ),
    ] = None,
    root_path: Annotated[
        str,
        typer.Option(
            "--root-path",
            metavar="PATH",
            help="The path under which a reverse proxy shows the server, e.g. /infinipot.",
        ),
    ] = "",
    tool_parser: Annotated[
        str | None,
        typer.Option(
            "--tool-parser",
            metavar="NAME",
            help="How the model writes calls of functions: hermes (also Qwen), qwen_xml "
            "(Qwen3-Coder), llama3, mistral, gemma, gemma4, gpt_oss. [default: as its chat template shows]",
        ),
    ] = None,
    tool_template: Annotated[
        str | None,
        typer.Option(
            "--tool-template",
            metavar="FILE",
            help="A chat template for requests with tools, if the model's own knows none: a file, "
            "or chatml. [default: chatml for smollm2]",
        ),
    ] = None,
    access_log: Annotated[
        str | None,
        typer.Option(
            "--access-log",
            metavar="KIND",
            help="One line on stderr for each request: text, json, off. [default: --log-format]",
        ),
    ] = None,
    log_level: Annotated[
        str,
        typer.Option(
            "--log-level",
            metavar="LEVEL",
            help="Least important messages on stderr: debug, info, warning, error, critical.",
        ),
    ] = "error",
    log_format: Annotated[
        str,
        typer.Option(
            "--log-format",
            metavar="KIND",
            help="How all lines on stderr are written: text, or json, an object a line.",
        ),
    ] = "text",
    ray: Annotated[
        str | None,
        typer.Option(
            "--ray",
            metavar="ADDRESS",
            help="Serve from a Ray cluster: its address, or local for one on this machine.",
        ),
    ] = None,
    replicas: Annotated[
        int | None,
        typer.Option(
            "--replicas",
            parser=whole,
            metavar="N",
            help="With --ray: how many times the model is loaded. [default: 1]",
        ),
    ] = None,
    max_replicas: Annotated[
        int | None,
        typer.Option(
            "--max-replicas",
            parser=whole,
            metavar="N",
            help="With --ray: as many as are needed, from --replicas up to this.",
        ),
    ] = None,
) -> int:
    """Serve the OpenAI API and a web page, with every conversation in a pot of fixed size."""
    few_heaps()
    from infinipot.cli.launch import Flags, launch

    flags = Flags(
        host=host,
        port=port,
        api_key=api_key,
        pot_dir=pot_dir,
        max_sessions=max_sessions,
        memory_fraction=memory_fraction,
        max_stall_ms=max_stall_ms,
        queue=queue,
        max_body_mb=max_body_mb,
        max_tokens_limit=max_tokens_limit,
        client_timeout=client_timeout,
        document_timeout=document_timeout,
        allowed_hosts=tuple(allowed_host or ()),
        allowed_origins=tuple(allowed_origin or ()),
        root_path=root_path,
        tool_parser=tool_parser,
        tool_template=tool_template,
        access_log=access_log,
        log_level=log_level,
        log_format=log_format,
        ray=ray,
        replicas=replicas,
        max_replicas=max_replicas,
    )
    launch(options, model, flags)
    return 0
