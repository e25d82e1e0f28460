"""An error type with the fixed reasons that applications and tests see."""

from typing import Final, Literal, get_args

Reason = Literal[
    "malformed",
    "unknown_version",
    "unknown_kind",
    "no_epoch_key",
    "wrong_key",
    "bad_ciphertext",
    "bad_padding",
    "unknown_sender_key",
    "bad_signature",
    "retired_key",
    "stale",
    "clear",
    "not_json",
]
REASONS: Final[tuple[str, ...]] = get_args(Reason)


class E2eeError(Exception):
    """Something does not open, or is not sealed; `reason` says why."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason)
        self.reason: Final[Reason] = reason
