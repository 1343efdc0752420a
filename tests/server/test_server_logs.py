"""What a server writes to stderr besides the access log: a form that programs can read."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from typer.testing import CliRunner

from infinipot.cli import app
from infinipot.server.logs import say, write_logs
from infinipot.server.request_record import RequestRecord, working_for

LOG = logging.getLogger("infinipot")


@pytest.fixture(autouse=True)
def loggers_as_before() -> Iterator[None]:
    names = (None, "infinipot.notices", "infinipot.access", "transformers", "huggingface_hub")
    before = [
        (logger, logger.level, logger.propagate, logger.handlers[:])
        for logger in map(logging.getLogger, names)
    ]
    for logger, *_ in before:
        logger.handlers.clear()  # of other tests, whose streams are closed
    with warnings.catch_warnings():  # also restores showwarning
        yield
    for logger, level, propagate, handlers in before:
        logger.setLevel(level)
        logger.propagate = propagate
        logger.handlers[:] = handlers


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    """The objects on stderr; what is no object fails the test."""
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_every_line_is_an_object(capsys: pytest.CaptureFixture[str]) -> None:
    write_logs("error", "json")
    say("http://127.0.0.1:8000\n(loading tiny)")
    LOG.warning("below the level")
    with working_for(RequestRecord("mine")):
        try:
            raise RuntimeError("boom\nbang")
        except RuntimeError as problem:
            LOG.error("a request failed: %s", problem, exc_info=problem)
    warnings.simplefilter("always")
    warnings.warn("a model that is new", UserWarning, stacklevel=1)
    logging.getLogger("transformers").error("a file is missing")
    told, failed, warned, library = lines(capsys)
    assert (told["level"], told["message"]) == ("info", "http://127.0.0.1:8000\n(loading tiny)")
    assert (failed["level"], failed["logger"]) == ("error", "infinipot")
    assert (failed["request_id"], failed["message"]) == ("mine", "a request failed: boom\nbang")
    assert failed["traceback"].splitlines()[-2:] == ["RuntimeError: boom", "bang"]
    assert (warned["level"], warned["message"]) == ("warning", "a model that is new")
    assert (library["logger"], library["message"]) == ("transformers", "a file is missing")
    assert "request_id" not in told and "traceback" not in told
    assert all(line["time"].endswith("+00:00") for line in (told, failed, warned, library))


def test_text_lines_begin_with_the_name(capsys: pytest.CaptureFixture[str]) -> None:
    write_logs("warning", "text")
    say("tiny is ready")
    LOG.info("below the level")
    with working_for(RequestRecord("mine")):
        LOG.warning("slow")
    said = capsys.readouterr().err.splitlines()
    assert said == ["infinipot: tiny is ready", "infinipot: request mine: slow"]


@pytest.mark.parametrize(
    ("flag", "allowed"),
    [("log-format", "text, json"), ("log-level", "debug, info"), ("access-log", "text, json, off")],
)
def test_unknown_forms_are_refused(flag: str, allowed: str) -> None:
    result = CliRunner().invoke(app, ["serve", "smollm2", f"--{flag}", "xml"])
    assert result.exit_code != 0
    assert "xml" in f"{result.output}{result.exception}"
    assert allowed in f"{result.output}{result.exception}"
