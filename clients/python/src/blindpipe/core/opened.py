"""Messages that opened: their senders, and the envelopes that replies name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from ..e2ee import Principal, ids
from ..e2ee.trust import Notice, Pin, Standing
from .types import JsonObject, Kind, Message

MAX_ENVELOPES: Final = 10_000
"""The messages of a conversation whose envelopes are remembered."""


@dataclass(frozen=True, slots=True)
class Sender:
    """The sender of something, as far as it is proven."""

    type: Kind
    id: str
    device_id: str | None
    """By the server's word: no signature covers it."""
    authentic: bool
    """An accepted key has signed it."""
    pinned: bool
    """The key was known before this start of the program."""
    verified: bool
    """People have compared the key."""
    member: bool
    """The server shows the sender as a member."""

    @property
    def principal(self) -> Principal:
        """The sender, as the encryption names it."""
        return ids.principal(self.type, self.id)


@dataclass(frozen=True, slots=True)
class OpenedMessage:
    """The content of a message, and what is proven of it."""

    content: JsonObject = field(repr=False)
    source: str = field(repr=False)
    """Its exact text, as it was sealed. In clear, names are sorted and there are no spaces."""
    encrypted: bool
    sender: Sender
    sent_at: datetime | None
    """By the sender's clock, signed; None in clear."""
    epoch: int
    re: str | None
    """The hash by which an answer names this envelope; None in clear."""
    is_replay: bool
    notices: Sequence[Notice]
    """Notices that stand beside it when it is shown."""


class Envelopes:
    """The hash of each message's envelope. The first one counts: a person was shown that one."""

    def __init__(self) -> None:
        self._by_id: dict[bytes, bytes] = {}

    def note(self, message_id: str, fingerprint: bytes) -> None:
        """Notes the envelope of a message; the oldest one is forgotten."""
        self._by_id.setdefault(ids.parse(message_id), fingerprint)
        if len(self._by_id) > MAX_ENVELOPES:
            del self._by_id[next(iter(self._by_id))]

    def get(self, message_id: str | None) -> bytes | None:
        """The hash of the envelope that was shown under an id."""
        return self._by_id.get(ids.parse(message_id)) if message_id else None


def proven(message: Message, pin: Pin | None, member: bool) -> Sender:
    """The sender of a message, by the key that signed it; None if none did."""
    told = message["sender"]
    return Sender(
        told["type"],
        told["id"],
        told.get("device_id"),
        authentic=pin is not None and pin.standing != Standing.WAITING,
        pinned=pin is not None and pin.from_store,
        verified=pin is not None and pin.standing == Standing.VERIFIED,
        member=member,
    )
