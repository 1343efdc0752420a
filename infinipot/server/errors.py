"""Errors as OpenAI's clients know them."""

from __future__ import annotations

import errno
from typing import Any

from infinipot.engine.decode import InvalidLogits
from infinipot.machine import out_of_memory
from infinipot.pot_file import PotFileError

FULL = {errno.ENOSPC, errno.EDQUOT}
FAILED = {
    errno.EIO,
    errno.EMFILE,
    errno.ENFILE,
    errno.EFBIG,
    errno.EROFS,
    errno.EACCES,
    errno.EPERM,
    errno.ESTALE,
    errno.EBUSY,
}
"""Errors of a disk, or of the system, that may pass."""


class APIError(Exception):
    """An error for a client. status: of HTTP. code, param: as in OpenAI's API."""

    def __init__(
        self, status: int, message: str, *, code: str | None = None, param: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param

    def body(self) -> dict[str, Any]:
        if self.status == 429:
            kind = "rate_limit_error"
        elif self.status < 500:
            kind = "invalid_request_error"
        else:
            kind = "server_error"
        # the message may quote what UTF-8 cannot hold
        message = self.message.encode("utf-8", "replace").decode()
        return {"error": {"message": message, "type": kind, "param": self.param, "code": self.code}}


def disk_trouble(problem: BaseException | None) -> OSError | None:
    """The system's error, if the disk is the cause of a problem."""
    cause = problem.__cause__ if isinstance(problem, PotFileError) else problem
    if not isinstance(cause, OSError):
        return None
    if cause is problem and cause.errno not in FULL | FAILED:
        return None
    return cause


def of_disk(cause: OSError) -> APIError:
    if cause.errno in FULL:
        return APIError(
            503,
            "the disk that keeps the pots is full: try again when there is room on it",
            code="disk_full",
        )
    why = cause.strerror or "an error"
    return APIError(
        503,
        f"the disk that keeps the pots cannot be used now ({why}): try again later",
        code="disk_failed",
    )


def shutting_down() -> APIError:
    return APIError(503, "the server is shutting down", code="shutting_down")


def error_of(problem: BaseException, from_client: bool = False) -> APIError:
    """The client's error for a problem with its request.

    from_client: whether a ValueError is about the client's input. An error that the client did not
    cause reveals nothing of the server's internals.
    """
    if isinstance(problem, APIError):
        return problem
    if out_of_memory(problem):
        return APIError(
            503,
            "there is not enough memory for this request: "
            "use a smaller pot_size, or try again later",
            code="out_of_memory",
        )
    cause = disk_trouble(problem)
    if cause is not None:
        return of_disk(cause)
    if isinstance(problem, PotFileError):
        return APIError(409, str(problem), code="pot_unusable", param="pot")
    if isinstance(problem, InvalidLogits):
        return APIError(500, str(problem), code="invalid_logits")
    if isinstance(problem, ValueError) and from_client:
        return APIError(400, " ".join(str(problem).split()))
    return APIError(
        500, "the server failed at this request; its log says why", code="internal_error"
    )
