"""What the server says when it does not do what it was asked: one form for all errors, OpenAI's."""

from __future__ import annotations

import errno
from typing import Any

import torch

from infinipot.pot_file import PotFileError


class Refusal(Exception):
    """An answer that is an error. status: of HTTP. code, param: as OpenAI's clients know them."""

    def __init__(self, status: int, message: str, *, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.code, self.param = status, message, code, param

    def body(self) -> dict[str, Any]:
        kind = "rate_limit_error" if self.status == 429 else "invalid_request_error" if self.status < 500 else "server_error"
        message = self.message.encode("utf-8", "replace").decode()  # it may quote what UTF-8 cannot hold
        return {"error": {"message": message, "type": kind, "param": self.param, "code": self.code}}


def out_of_memory(problem: BaseException) -> bool:
    """torch says it by a class of its own on GPUs, by words on the CPU."""
    return isinstance(problem, (torch.OutOfMemoryError, MemoryError)) or "can't allocate memory" in str(problem)


def refusal_of(problem: BaseException, given: bool = False) -> Refusal:
    """What a client is told about a problem with its request.

    given: whether a ValueError tells of what the client gave. What is not the client's doing says nothing of the server's inside.
    """
    if isinstance(problem, Refusal):
        return problem
    if out_of_memory(problem):
        return Refusal(503, "there is not enough memory for this request: use a smaller pot_size, or try again later", code="out_of_memory")
    if isinstance(problem, PotFileError):
        full = isinstance(problem.__cause__, OSError) and problem.__cause__.errno in (errno.ENOSPC, errno.EDQUOT)
        return Refusal(503, str(problem), code="disk_full") if full else Refusal(409, str(problem), code="pot_unusable", param="pot")
    if isinstance(problem, ValueError) and given:
        return Refusal(400, " ".join(str(problem).split()))
    return Refusal(500, "the server failed at this request; its log says why", code="internal_error")
