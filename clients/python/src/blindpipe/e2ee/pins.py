"""A pin: a key that was shown, its standing, and its end."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NotRequired, TypedDict

from ._bytes import from_base64, to_base64
from .keys import PublicKeys


class Standing(enum.IntEnum):
    """How a key came to be trusted, in rising order."""

    WAITING = 0
    KNOWN = 1
    INTRODUCED = 2
    VERIFIED = 3


@dataclass(frozen=True, slots=True)
class Introduction:
    """The signer of a new key."""

    by: bytes
    signature: bytes


@dataclass(frozen=True, slots=True)
class DirectoryKey:
    """A key as the directory lists it."""

    device_id: str | None
    public_key: bytes
    signing_public_key: bytes
    schemes: Sequence[str] = ()
    introduction: Introduction | None = None
    retired: bool = False
    """It has left, also if no time of that is told."""
    retired_at: int | None = None
    """Its end, in Unix milliseconds by the server's clock; it may lie ahead."""

    def is_retired(self, now: int) -> bool:
        """Whether it has left, or its end has passed."""
        return self.retired or _has_passed(self.retired_at, now)


def _has_passed(end: int | None, now: int) -> bool:
    return end is not None and end <= now


@dataclass(slots=True)
class Pin:
    """A key that was once shown. Pins are kept for ever."""

    keys: PublicKeys
    device_id: str | None
    standing: Standing
    retired: bool
    """It left the directory, as far as this client has read. See `is_retired`."""
    introduced_by: bytes | None = None
    retired_at: int | None = None
    """The server's time of its end, which may lie ahead; None if it was not told."""
    from_store: bool = False
    """Seen before this start of the program."""

    @classmethod
    def fresh(cls, keys: PublicKeys, key: DirectoryKey, standing: Standing, now: int) -> Pin:
        """The pin of a key that is shown for the first time."""
        retired = key.is_retired(now)
        return cls(keys, key.device_id, standing, retired, retired_at=key.retired_at)

    def is_retired(self, now: int) -> bool:
        """Whether it left the directory, or its end has passed since."""
        return self.retired or _has_passed(self.retired_at, now)

    def is_accepted(self, now: int) -> bool:
        """Whether something new may be wrapped for it and believed from it."""
        return not self.is_retired(now) and self.standing > Standing.WAITING

    def come_back(self, now: int) -> None:
        """It counts again. An end that lies ahead stays."""
        self.retired = False
        if _has_passed(self.retired_at, now):
            self.retired_at = None

    def read(self, shown: DirectoryKey | None, now: int) -> None:
        """Takes over what the directory says now; None if it does not list the key."""
        self.retired = self.is_retired(now) or shown is None or shown.is_retired(now)
        told = shown.retired_at if shown else None
        if self.retired:
            # A key that has left lets nothing in by an end that lies ahead.
            ends = (end for end in (told, self.retired_at) if _has_passed(end, now))
            told = next(ends, None)
        self.retired_at = told


@dataclass(slots=True)
class Pins:
    """All keys of one principal."""

    keys: dict[bytes, Pin] = field(default_factory=dict)
    speaks_bp1: bool = False
    linked: bytes | None = None
    """The key of a link that was followed, until the directory shows it."""

    def verified(self) -> list[Pin]:
        """Those that people compared, that a link named, or that such keys introduced."""
        return [pin for pin in self.keys.values() if pin.standing == Standing.VERIFIED]


class StoredPin(TypedDict):
    """A pin as a store keeps it; bytes of keys are base64, ids are hex."""

    key_id: str
    public_key: str
    signing_public_key: str
    device_id: str
    standing: str
    retired: bool
    retired_at: int | None
    introduced_by: str | None


class StoredPrincipal(TypedDict):
    """All that a store keeps of one principal."""

    speaks: bool
    linked: str | None
    keys: list[StoredPin]
    fresh: NotRequired[list[str]]
    """The keys that were first seen in this run; not in a store."""


class StoredPins(TypedDict):
    """Pins as a store keeps them, for ever."""

    principals: Mapping[str, StoredPrincipal]


def stored_pins(pins: Pins) -> StoredPrincipal:
    """For a store."""
    return {
        "speaks": pins.speaks_bp1,
        "linked": pins.linked.hex() if pins.linked else None,
        "keys": [
            {
                "key_id": key_id.hex(),
                "public_key": to_base64(pin.keys.public_key),
                "signing_public_key": to_base64(pin.keys.signing_public_key),
                "device_id": pin.device_id or "",
                "standing": pin.standing.name.lower(),
                "retired": pin.retired,
                "retired_at": pin.retired_at,
                "introduced_by": pin.introduced_by.hex() if pin.introduced_by else None,
            }
            for key_id, pin in pins.keys.items()
        ],
    }


def packed_pins(pins: Pins) -> StoredPrincipal:
    """As for a store, for the rest of this run."""
    fresh = [key_id.hex() for key_id, pin in pins.keys.items() if not pin.from_store]
    return {**stored_pins(pins), "fresh": fresh}


def restored_pins(entry: StoredPrincipal) -> Pins:
    """From a store, or from `packed_pins`."""
    linked = bytes.fromhex(entry["linked"]) if entry["linked"] else None
    keys = {bytes.fromhex(pin["key_id"]): _restored_pin(pin) for pin in entry["keys"]}
    for key_id in entry.get("fresh", ()):
        keys[bytes.fromhex(key_id)].from_store = False
    return Pins(keys, entry["speaks"], linked)


def merged_pins(mine: Pins, theirs: Pins) -> Pins:
    """Joins what two processes have learned at once. In doubt a key waits, or has left."""
    keys = dict(mine.keys)
    for key_id, pin in theirs.keys.items():
        own = keys.get(key_id)
        keys[key_id] = pin if own is None else _merged_pin(own, pin)
    merged = Pins(keys, mine.speaks_bp1 or theirs.speaks_bp1, mine.linked or theirs.linked)
    if merged.verified():
        for pin in keys.values():
            if pin.standing != Standing.VERIFIED:
                pin.standing, pin.introduced_by = Standing.WAITING, None
    return merged


def _merged_pin(own: Pin, other: Pin) -> Pin:
    both = own.standing, other.standing
    is_verified = Standing.VERIFIED in both
    ends = [end for end in (own.retired_at, other.retired_at) if end is not None]
    return replace(
        own,
        standing=Standing.VERIFIED if is_verified else min(both),
        retired=own.retired or other.retired,
        introduced_by=own.introduced_by or other.introduced_by,
        retired_at=min(ends, default=None),
    )


def _restored_pin(pin: StoredPin) -> Pin:
    introduced_by = pin["introduced_by"]
    return Pin(
        PublicKeys(from_base64(pin["public_key"]), from_base64(pin["signing_public_key"])),
        pin["device_id"] or None,
        Standing[pin["standing"].upper()],
        pin["retired"],
        bytes.fromhex(introduced_by) if introduced_by else None,
        pin["retired_at"],
        from_store=True,
    )
