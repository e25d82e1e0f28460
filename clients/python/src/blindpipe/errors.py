"""Errors of the service and of the connection to it. Nobody needs to parse text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from .e2ee import E2eeError

DecryptError = E2eeError
"""Something does not open, or is not sealed; `reason` says why."""


_PASSING_STATUSES: Final = (408, 429, 502, 503, 504)


class BlindpipeError(Exception):
    """The base of every error that comes from the service or the connection to it.

    `status` is 0 where no answer came.
    """

    def __init__(
        self,
        code: str,
        status: int,
        message: str,
        params: Mapping[str, Any] | None = None,
        request_id: str | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.status = status
        self.message = message
        self.params: Mapping[str, Any] = params or {}
        self.request_id = request_id

    @property
    def retryable(self) -> bool:
        """Whether the same request may succeed later without a change."""
        told = self.params.get("retryable")
        # A proxy before the service says nothing of this.
        return told if isinstance(told, bool) else self.status in _PASSING_STATUSES


class ApiError(BlindpipeError):
    """A refusal by the service. Unknown codes are of this class itself."""


def _local(retryable: bool) -> dict[str, Any]:
    return {"retryable": retryable}


class ConnectionLost(BlindpipeError):
    """No answer came. For a send with an id, a repeat is safe.

    `__cause__` is the error of the connection.
    """

    def __init__(
        self, message: str = "the connection was lost", *, is_untrusted: bool = False
    ) -> None:
        super().__init__("CONNECTION_LOST", 0, message, _local(True))
        self.is_untrusted = is_untrusted
        """The server's certificate is not trusted."""


class Closed(BlindpipeError):
    """The client was closed, or the service ended it for good.

    `close_code` is the socket's, if one said so.
    """

    def __init__(self, message: str = "closed", close_code: int | None = None) -> None:
        super().__init__("CLOSED", 0, message, _local(False))
        self.close_code = close_code


class IdConflict(BlindpipeError):
    """An earlier message has this id, and it is another sender's."""

    def __init__(self) -> None:
        super().__init__("ID_CONFLICT", 0, "another message has this id", _local(False))


class KeyUnavailable(Exception):
    """There is no secret to seal with, or none that may seal."""

    def __init__(self, message: str = "no key of this conversation may seal") -> None:
        super().__init__(message)


class NotApproved(Exception):
    """Neither the person nor an approval that is remembered allows this request of an agent."""

    code: Final = "not_approved"

    def __init__(self, decision: str) -> None:
        super().__init__(f"the request is not approved: {decision}")
        self.decision = decision
        """The decision of `decide()`."""


class UsageError(Exception):
    """A caller's mistake."""
