"""Ids that follow from what is answered, so that work done twice is sent once."""

from __future__ import annotations

import os
import time
import uuid
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from ._bytes import label, prefixed, sha256
from .errors import E2eeError
from .keys import Principal

MAX_CACHED_IDS: Final = 4096
"""Most messages name few conversations and members."""
_CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_BASE_32 = "0123456789abcdefghijklmnopqrstuv"


def _table(letters: str, digits: str) -> bytes:
    """Python's digits of base 32 for Crockford's, in both cases. All others become no digits."""
    pairs = dict(zip(letters + letters.lower(), digits * 2, strict=True))
    return bytes(ord(pairs.get(chr(each), "!")) for each in range(256))


_DIGITS = _table(_CROCKFORD, _BASE_32)
# Crockford's letters that look like digits are taken for these.
_ALIKE = _table(_CROCKFORD + "ILO", _BASE_32 + "110")


@dataclass(frozen=True, slots=True)
class Origin:
    """Names what is answered, whatever event brings it."""

    hash: bytes
    time: bytes

    @classmethod
    def message(
        cls, conversation: bytes, sender: Principal, client_message_id: bytes
    ) -> Origin:
        """An encrypted message: all of this is signed."""
        hash = sha256(label("origin"), conversation, sender.to_bytes(), client_message_id)
        return cls(hash, client_message_id[:6])

    @classmethod
    def event(cls, event_id: bytes) -> Origin:
        """Any other event."""
        return cls(sha256(label("event"), event_id), event_id[:6])

    @property
    def key(self) -> bytes:
        """For the idempotency of other systems."""
        return self.hash[:16]

    def reply(self, agent: bytes, name: str) -> bytes:
        """The `client_message_id` of an agent's reply; `name` is its number, or a key."""
        return self.time + sha256(label("reply"), agent, self.hash, prefixed(name))[:10]


def from_ulid(text: str) -> bytes | None:
    """The id that 26 characters of a ULID name; None if they name none."""
    return _number(text, _DIGITS)


def _number(text: str, digits: bytes) -> bytes | None:
    if len(text) != 26:
        return None
    try:
        return int(text.encode("ascii").translate(digits), 32).to_bytes(16, "big")
    except (ValueError, OverflowError):
        return None


def ulid(id: bytes) -> str:
    """An id as the 26 characters of a ULID."""
    number = int.from_bytes(id, "big")
    return "".join(_CROCKFORD[number >> 5 * place & 31] for place in reversed(range(26)))


@lru_cache(MAX_CACHED_IDS)
def parse(text: str) -> bytes:
    """The 16 bytes of a ULID or a UUID, in any spelling. Raises `malformed`."""
    id = _number(text, _ALIKE)
    if id is not None:
        return id
    try:
        return uuid.UUID(text).bytes
    except ValueError:
        raise E2eeError("malformed") from None


def new_ulid() -> str:
    """A fresh id of this moment."""
    return ulid((time.time_ns() // 1_000_000).to_bytes(6, "big") + os.urandom(10))


@lru_cache(MAX_CACHED_IDS)
def principal(kind: str, id: str) -> Principal:
    """The principal of a `type` and an id as the service writes them."""
    data = parse(id)
    return Principal.user(data) if kind == "user" else Principal.agent(data)


def principal_id(of: Principal) -> str:
    """The id as the service writes it: users have ULIDs, agents UUIDs."""
    return ulid(of.id) if of.is_user else str(uuid.UUID(bytes=of.id))
