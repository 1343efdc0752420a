"""What the server says when it does not do what it was asked: one form for all errors, OpenAI's."""

from __future__ import annotations

import errno
from typing import Any

from infinipot.machine import out_of_memory
from infinipot.pot_file import PotFileError

FULL = {errno.ENOSPC, errno.EDQUOT}
FAILED = {errno.EIO, errno.EMFILE, errno.ENFILE, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.ESTALE, errno.EBUSY}
"""What a disk, or the system, says that cannot do now what may be possible later."""


class Refusal(Exception):
    """An answer that is an error. status: of HTTP. code, param: as OpenAI's clients know them."""

    def __init__(self, status: int, message: str, *, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.code, self.param = status, message, code, param

    def body(self) -> dict[str, Any]:
        kind = "rate_limit_error" if self.status == 429 else "invalid_request_error" if self.status < 500 else "server_error"
        message = self.message.encode("utf-8", "replace").decode()  # it may quote what UTF-8 cannot hold
        return {"error": {"message": message, "type": kind, "param": self.param, "code": self.code}}


def disk_trouble(problem: BaseException | None) -> OSError | None:
    """What the disk said, if it is the reason."""
    cause = problem.__cause__ if isinstance(problem, PotFileError) else problem
    told = isinstance(cause, OSError) and (cause is not problem or cause.errno in FULL | FAILED)
    return cause if told else None  # type: ignore[return-value]


def of_disk(cause: OSError) -> Refusal:
    if cause.errno in FULL:
        return Refusal(503, "the disk that keeps the pots is full: try again when there is room on it", code="disk_full")
    why = cause.strerror or "an error"
    return Refusal(503, f"the disk that keeps the pots cannot be used now ({why}): try again later", code="disk_failed")


def shutting_down() -> Refusal:
    return Refusal(503, "the server is shutting down", code="shutting_down")


def refusal_of(problem: BaseException, given: bool = False) -> Refusal:
    """What a client is told about a problem with its request.

    given: whether a ValueError tells of what the client gave. What is not the client's doing says nothing of the server's inside.
    """
    if isinstance(problem, Refusal):
        return problem
    if out_of_memory(problem):
        return Refusal(503, "there is not enough memory for this request: use a smaller pot_size, or try again later", code="out_of_memory")
    cause = disk_trouble(problem)
    if cause is not None:
        return of_disk(cause)
    if isinstance(problem, PotFileError):
        return Refusal(409, str(problem), code="pot_unusable", param="pot")
    if isinstance(problem, ValueError) and given:
        return Refusal(400, " ".join(str(problem).split()))
    return Refusal(500, "the server failed at this request; its log says why", code="internal_error")
