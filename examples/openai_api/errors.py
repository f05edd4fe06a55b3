"""Errors in the API's own shape: of requests that are refused, and of turns that have failed."""

from __future__ import annotations

import math
from typing import Any, Final

from starlette.responses import JSONResponse

from ..chat_agent.model import (
    ModelBusyError,
    ModelError,
    ModelSilentError,
    RequestError,
    well_formed,
)

KINDS: Final = {404: "not_found_error", 409: "conflict_error", 429: "rate_limit_error"}
BUSY: Final = "upstream_rate_limit_exceeded"
STATUS: Final = {  # of a turn that has failed, by its code; others: 400 or 500
    "upstream_error": 502, "upstream_silent": 504, "turn_timeout": 504, BUSY: 429,
    "previous_response_not_found": 404, "too_late": 409,
}  # fmt: skip


class Refused(Exception):
    """A request that is answered with an error; ``param`` is the field that it is about."""

    def __init__(
        self, status: int, message: str, code: str | None = None,
        *, param: str | None = None, **headers: str,
    ) -> None:  # fmt: skip
        super().__init__(message)
        self.status, self.code, self.param = status, code, param
        self.headers: Final = {name.replace("_", "-"): value for name, value in headers.items()}

    @property
    def problem(self) -> dict[str, Any]:
        """The object of the error, as clients read it."""
        return problem(str(self), self.code, self.param, self.status)


class BadInputError(Refused):
    """The input of a request is not valid; the text is one line for the client."""

    def __init__(self, message: str, param: str | None = "input") -> None:
        super().__init__(400, message, "invalid_value", param=param)


def error(refused: Refused) -> JSONResponse:
    """Return an error in the API's shape."""
    return JSONResponse({"error": refused.problem}, refused.status, refused.headers)


def problem(
    message: str, code: str | None = "server_error", param: str | None = None, status: int = 500
) -> dict[str, Any]:
    """Return the object of an error, as clients read it."""
    kind = KINDS.get(status, "server_error" if status > 499 else "invalid_request_error")
    body = {"message": message, "type": kind, "param": param, "code": code}
    return {name: value and well_formed(value) for name, value in body.items()}


def of_model(failure: ModelError) -> dict[str, Any]:
    """Return the object of an error of the model."""
    if isinstance(failure, RequestError):
        return problem(str(failure), failure.code, failure.param, STATUS.get(failure.code, 400))
    if isinstance(failure, ModelSilentError):
        return problem(f"{failure} (--silence-timeout)", "upstream_silent", status=504)
    if isinstance(failure, ModelBusyError):
        return problem(str(failure), BUSY, status=429) | {"retry_after": failure.retry_after}
    return problem(str(failure), "upstream_error")


def too_slow(seconds: float) -> dict[str, Any]:
    """Return the object of the error of a turn whose time is over."""
    text = f"the turn was stopped after {seconds:g} s (--turn-timeout)"
    return problem(text, "turn_timeout", status=504)


def failed(body: dict[str, Any]) -> Refused:
    """Return the answer to a request whose turn has failed; a repetition would ask again.

    Only where the upstream was busy all the time, a client may repeat it, when the time is over.
    """
    code = body["code"]
    status = STATUS.get(code, 500 if body["type"] == "server_error" else 400)
    more = {"x_should_retry": "false"}
    if code == BUSY:
        seconds = body.get("retry_after")
        more = {} if seconds is None else {"retry_after": str(math.ceil(seconds))}
    return Refused(status, body["message"], code, param=body["param"], **more)
