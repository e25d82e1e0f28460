"""Pins: which keys of whom are known, introduced, verified, waiting for a person, or retired."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from .errors import E2eeError
from .keys import Principal, PublicKeys, verify_introduction
from .pins import DirectoryKey as DirectoryKey
from .pins import Introduction as Introduction
from .pins import Pin as Pin
from .pins import Pins, restored_pins, stored_pins
from .pins import Standing as Standing
from .pins import StoredPins as StoredPins

Policy = Literal["tofu", "strict"]
"""`strict`: first keys wait for a person too."""


class NoticeKind(enum.IntEnum):
    """The notices for a person. The names, in lower case, are the same in every language."""

    INTRODUCED_KEY = 0
    WAITING_KEY = 1
    UNUSABLE_KEY = 2
    RETIRED_KEY = 3
    RETURNED_KEY = 4
    OWN_LIST_KEY = 5
    LINK_RETIRED = 6
    MEMBER_ADDED = 7
    MEMBER_REMOVED = 8
    AGENT_SEES_ALL = 9
    NOT_MEMBER = 10
    OTHER_SECRET_BEFORE = 11
    OTHER_SECRET = 12
    OTHER_TIME = 13
    NOT_ENCRYPTED = 14
    NO_QUOTE = 15


@dataclass(frozen=True, slots=True)
class Notice:
    """A notice about somebody, and the key that it concerns."""

    kind: NoticeKind
    about: Principal
    key: bytes | None = None


def in_order(notices: Iterable[Notice]) -> list[Notice]:
    return sorted(notices, key=lambda n: (n.kind, n.about, n.key or b""))


_Listed = list[tuple[bytes, PublicKeys, DirectoryKey]]


class Trust:
    """All pins of one client. `own` are the keys that it holds, or this person added."""

    def __init__(
        self,
        me: Principal,
        policy: Policy = "tofu",
        own: Iterable[bytes] = (),
        stored: StoredPins | None = None,
    ) -> None:
        self.me = me
        self._policy = policy
        self._own = set(own)
        self._pins: dict[Principal, Pins] = {}
        for name, entry in (stored or {"principals": {}})["principals"].items():
            self._pins[Principal.from_bytes(bytes.fromhex(name))] = restored_pins(entry)

    def hold(self, keys: Iterable[bytes]) -> None:
        """Keys that this client got since."""
        self._own.update(keys)

    def store(self) -> StoredPins:
        """The pins, to be kept for ever."""
        entries = {of.to_bytes().hex(): stored_pins(pins) for of, pins in self._pins.items()}
        return {"principals": entries}

    def is_known(self, of: Principal) -> bool:
        """Whether any key of `of` was ever shown."""
        pins = self._pins.get(of)
        return pins is not None and bool(pins.keys)

    def _of(self, principal: Principal) -> Pins:
        return self._pins.setdefault(principal, Pins())

    def pin(self, of: Principal, key: bytes) -> Pin | None:
        pins = self._pins.get(of)
        return pins.keys.get(key) if pins else None

    def speaks_bp1(self, of: Principal) -> bool:
        """Whether `of` speaks `bp1`, or ever did."""
        pins = self._pins.get(of)
        return pins is not None and pins.speaks_bp1

    def heard(self, of: Principal) -> None:
        """An envelope or a wrap of its own came: `of` speaks `bp1`."""
        self._of(of).speaks_bp1 = True

    def directory(
        self, of: Principal, keys: Sequence[DirectoryKey], now: int
    ) -> list[Notice]:
        """Takes in the directory's list of one principal's keys; `now` in Unix milliseconds."""
        notices: list[Notice] = []
        listed: _Listed = []
        for key in keys:
            try:
                public = PublicKeys(key.public_key, key.signing_public_key)
            except E2eeError:
                notices.append(Notice(NoticeKind.UNUSABLE_KEY, of))
            else:
                listed.append((public.key_id, public, key))
        first_contact = not self._of(of).keys
        self._retire(of, listed, notices, now)
        self._pin_first(of, listed, first_contact, now)
        self._introduce(of, listed, notices, now)
        self._pin_waiting(of, listed, notices, now)
        pins = self._of(of)
        if listed and not self._verify_linked(of, now) and pins.linked is not None:
            notices.append(Notice(NoticeKind.LINK_RETIRED, of, pins.linked))
            pins.linked = None
        if any("bp1" in key.schemes for key in keys):
            self.heard(of)
        return in_order(notices)

    def _retire(self, of: Principal, listed: _Listed, notices: list[Notice], now: int) -> None:
        """Marks keys that left the list. A key that comes back stays retired until a tap."""
        shown = {key_id: key for key_id, _, key in listed}
        for key_id, pin in self._of(of).keys.items():
            key, before = shown.get(key_id), pin.retired
            if key is None or key.is_retired(now):
                told = None if before else NoticeKind.RETIRED_KEY
            else:
                told = NoticeKind.RETURNED_KEY if pin.is_retired(now) else None
            pin.read(key, now)
            if told is not None:
                notices.append(Notice(told, of, key_id))

    def _pin_first(
        self, of: Principal, listed: _Listed, first_contact: bool, now: int
    ) -> None:
        """Pins what is accepted at once: the client's own keys, and first keys unless strict."""
        pins = self._of(of).keys
        for key_id, keys, key in listed:
            if of == self.me and key_id in self._own:
                standing = Standing.VERIFIED
            elif of != self.me and first_contact and self._policy == "tofu":
                standing = Standing.KNOWN
            else:
                continue
            pins.setdefault(key_id, Pin.fresh(keys, key, standing, now))

    def _introduce(
        self, of: Principal, listed: _Listed, notices: list[Notice], now: int
    ) -> None:
        """Accepts every key that an accepted one introduced; it may introduce the next."""
        pins = self._of(of).keys
        again = True
        while again:
            again = False
            for key_id, keys, key in listed:
                pin = self._introduced(of, key_id, keys, key, now)
                if pin is None:
                    continue
                before = pins.get(key_id)
                pins[key_id] = pin
                if before is None or before.standing == Standing.WAITING:
                    notices.append(Notice(NoticeKind.INTRODUCED_KEY, of, key_id))
                again = True

    def _introduced(
        self, of: Principal, key_id: bytes, keys: PublicKeys, key: DirectoryKey, now: int
    ) -> Pin | None:
        """The pin of a key whose introduction counts and was not counted yet."""
        introduction, before = key.introduction, self.pin(of, key_id)
        if introduction is None or key.is_retired(now):
            return None
        if before is not None and (before.is_retired(now) or before.introduced_by is not None):
            return None
        by = self.pin(of, introduction.by)
        if by is None or not by.is_accepted(now):
            return None
        try:
            verify_introduction(by.keys, of, key.device_id, keys, introduction.signature)
        except E2eeError:
            return None
        verified = by.standing == Standing.VERIFIED
        standing = Standing.VERIFIED if verified else Standing.INTRODUCED
        if before is not None:
            standing = max(standing, before.standing)
        return Pin(keys, key.device_id, standing, False, introduction.by, key.retired_at)

    def _pin_waiting(
        self, of: Principal, listed: _Listed, notices: list[Notice], now: int
    ) -> None:
        """A key that is not accepted waits. On the person's own list it is an alarm, each time."""
        pins = self._of(of).keys
        for key_id, keys, key in listed:
            is_new = key_id not in pins
            fresh = Pin.fresh(keys, key, Standing.WAITING, now)
            pin = pins.setdefault(key_id, fresh)
            if pin.standing != Standing.WAITING or pin.is_retired(now):
                continue
            if of == self.me:
                notices.append(Notice(NoticeKind.OWN_LIST_KEY, of, key_id))
            elif is_new:
                notices.append(Notice(NoticeKind.WAITING_KEY, of, key_id))

    def confirm(self, of: Principal, key: bytes, now: int) -> bool:
        """A person's tap: the key is accepted, and comes back if it was retired."""
        pin = self.pin(of, key)
        if pin is None:
            return False
        pin.standing = max(pin.standing, Standing.KNOWN)
        pin.come_back(now)
        return True

    def verify(self, of: Principal, key: bytes, now: int) -> bool:
        """People compared the key. Keys that it introduced are verified with it."""
        pin = self.pin(of, key)
        if pin is None or pin.is_retired(now):
            return False
        pin.standing = Standing.VERIFIED
        self._spread(of, key)
        return True

    def link(self, agent: Principal, key: bytes, now: int) -> list[Notice]:
        """Follows an agent's link, which names its key; remembered before the first contact."""
        pins = self._of(agent)
        pins.speaks_bp1 = True
        pins.linked = key
        if not pins.keys or self._verify_linked(agent, now):
            return []
        pins.linked = None
        return [Notice(NoticeKind.LINK_RETIRED, agent, key)]

    def _verify_linked(self, of: Principal, now: int) -> bool:
        """Verifies the key of the link, or the present one that introductions lead to from it."""
        pins = self._of(of)
        if pins.linked is None or pins.linked not in pins.keys:
            return False
        pin = pins.keys[pins.linked]
        if not pin.is_retired(now):
            pin.standing = Standing.VERIFIED
        self._spread(of, pins.linked)
        found = any(
            pin.standing == Standing.VERIFIED and not pin.is_retired(now)
            for pin in pins.keys.values()
        )
        if found:
            pins.linked = None
        return found

    def _spread(self, of: Principal, source: bytes) -> None:
        """Verifies all keys that introductions lead to from `source`."""
        sources = [source]
        while sources:
            by = sources.pop()
            for key_id, pin in self._of(of).keys.items():
                if pin.introduced_by == by and pin.standing == Standing.INTRODUCED:
                    pin.standing = Standing.VERIFIED
                    sources.append(key_id)
