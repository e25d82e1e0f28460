"""Pins: which keys of whom are known, introduced, verified, waiting for a person, or retired."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from . import safety
from ._texts import Texts
from .errors import E2eeError
from .keys import Principal, PublicKeys, verify_introduction
from .pins import DirectoryKey as DirectoryKey
from .pins import Introduction as Introduction
from .pins import Pin as Pin
from .pins import (
    Pins,
    StoredPrincipal,
    merged_pins,
    packed_pins,
    restored_pins,
    stored_pins,
)
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
    """By kind, whom they concern, and key: the same order in every language."""
    return sorted(notices, key=lambda n: (n.kind, n.about, n.key or b""))


_MAX_USED_PRINCIPALS: Final = 2_000
"""Those whose pins are not texts."""
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
        # The pins that were used last, and all of them as texts.
        self._pins: dict[Principal, Pins] = {}
        self._packed = Texts.of(stored["principals"] if stored else {})
        self._changed: set[Principal] = set()

    def add_own(self, keys: Iterable[bytes]) -> None:
        """Adds the ids of keys that this client got since."""
        self._own.update(keys)

    def store(self) -> StoredPins:
        """The pins, to be kept for ever."""
        used = {of.to_bytes().hex(): None for of in self._pins}
        names = {**dict.fromkeys(self._packed), **used}
        return self._entries(Principal.from_bytes(bytes.fromhex(name)) for name in names)

    def _entries(self, of: Iterable[Principal]) -> StoredPins:
        found = {who: self._find(who) for who in of}
        entries = {who.to_bytes().hex(): stored_pins(pins) for who, pins in found.items() if pins}
        return {"principals": entries}

    def take_changed(self) -> tuple[set[Principal], StoredPins]:
        """Whose pins have changed since the last question, and these as a store keeps them."""
        changed, self._changed = self._changed, set()
        return changed, self._entries(changed)

    def not_kept(self, changed: Iterable[Principal]) -> None:
        """A store did not keep what `take_changed` gave."""
        self._changed.update(changed)

    def take_over(self, entries: Mapping[str, StoredPrincipal]) -> list[Principal]:
        """Pins that another process of this client has stored, and whose they are.

        Where both processes have changed a key, the stricter standing counts.
        """
        found = []
        for name, entry in entries.items():
            who, pins = Principal.from_bytes(bytes.fromhex(name)), restored_pins(entry)
            if who in self._changed:
                pins = merged_pins(self._of(who), pins)
            self._pins.pop(who, None)
            self._use(who, pins)
            found.append(who)
        return found

    def is_known(self, of: Principal) -> bool:
        """Whether any key of `of` was ever shown."""
        pins = self._find(of)
        return pins is not None and bool(pins.keys)

    def _find(self, of: Principal) -> Pins | None:
        pins = self._pins.pop(of, None) or self._unpacked(of.to_bytes().hex())
        return self._use(of, pins) if pins else None

    def _unpacked(self, name: str) -> Pins | None:
        packed: StoredPrincipal | None = self._packed.get(name)
        return restored_pins(packed) if packed else None

    def _use(self, of: Principal, pins: Pins) -> Pins:
        self._pins[of] = pins
        if len(self._pins) > _MAX_USED_PRINCIPALS:
            eldest = next(iter(self._pins))
            self._packed.put(eldest.to_bytes().hex(), packed_pins(self._pins.pop(eldest)))
        return pins

    def _of(self, principal: Principal) -> Pins:
        return self._find(principal) or self._use(principal, Pins())

    def _changing(self, principal: Principal) -> Pins:
        self._changed.add(principal)
        return self._of(principal)

    def pin(self, of: Principal, key: bytes) -> Pin | None:
        """The record of a key, by its id of 16 bytes; None if it was never shown."""
        pins = self._find(of)
        return pins.keys.get(key) if pins else None

    def speaks_bp1(self, of: Principal) -> bool:
        """Whether `of` speaks `bp1`, or ever did."""
        pins = self._find(of)
        return pins is not None and pins.speaks_bp1

    def heard(self, of: Principal) -> None:
        """An envelope or a wrap of its own came: `of` speaks `bp1`."""
        if not self.speaks_bp1(of):
            self._changing(of).speaks_bp1 = True

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
        pins = self._of(of)
        before, known = stored_pins(pins), len(pins.keys)
        self._retire(of, listed, notices, now)
        self._pin_first(of, listed, known == 0, now)
        self._introduce(of, listed, notices, now)
        self._pin_waiting(of, listed, notices, now)
        notices += _follow(of, pins, now, is_news=len(pins.keys) > known)
        if any("bp1" in key.schemes for key in keys):
            self.heard(of)
        if stored_pins(pins) != before:
            self._changed.add(of)
        return in_order(notices)

    def _retire(self, of: Principal, listed: _Listed, notices: list[Notice], now: int) -> None:
        """Marks keys that left the list. A key that comes back stays retired until it is accepted."""
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

    def _pin_first(self, of: Principal, listed: _Listed, is_first: bool, now: int) -> None:
        """Pins what is accepted at once.

        These are the client's own keys, the key of a link, and first keys unless the policy is
        strict. While the key of a link is not listed, first keys wait too.
        """
        pins = self._of(of)
        named = {id for id, _, key in listed if id == pins.linked and not key.is_retired(now)}
        is_known = is_first and self._policy == "tofu" and (pins.linked is None or bool(named))
        for key_id, keys, key in listed:
            if of == self.me and key_id in self._own:
                standing = Standing.VERIFIED
            elif of != self.me and (is_known or key_id in named):
                standing = Standing.KNOWN
            else:
                continue
            pins.keys.setdefault(key_id, Pin.fresh(keys, key, standing, now))

    def _introduce(
        self, of: Principal, listed: _Listed, notices: list[Notice], now: int
    ) -> None:
        """Accepts every key that an accepted one introduced; it may introduce the next.

        Beside a verified key, only verified ones introduce.
        """
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
        least = Standing.VERIFIED if self._of(of).verified() else Standing.KNOWN
        if by is None or not by.is_accepted(now) or by.standing < least:
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
        """A person accepts the key, and it comes back if it was retired. False if it is unknown."""
        pin = self.pin(of, key)
        if pin is None:
            return False
        self._changed.add(of)
        pin.standing = max(pin.standing, Standing.KNOWN)
        pin.come_back(now)
        return True

    def safety_number(self, of: Principal, now: int) -> str | None:
        """60 digits to compare with `of`: of all accepted keys of both sides.

        Where a side has none, of those that wait. None if a side has no keys at all.
        """
        mine, other = (_compared(self._of(who), now).values() for who in (self.me, of))
        if of == self.me or not mine or not other:
            return None
        keys = ([pin.keys for pin in side] for side in (mine, other))
        return safety.number((self.me, next(keys)), (of, next(keys)))

    def verify_number(self, of: Principal, number: str, now: int) -> list[Notice] | None:
        """People compared the digits: every key of `of` that they stand for is verified.

        None if these are not, or no longer, the digits of now.
        """
        present = self.safety_number(of, now)
        if present is None or "".join(present.split()) != "".join(number.split()):
            return None
        pins = self._changing(of)
        return _raise(of, pins, list(_compared(pins, now)), now)

    def verify(self, of: Principal, key: bytes, now: int) -> list[Notice] | None:
        """People compared this key alone. None if it was never shown, or is retired."""
        pin = self.pin(of, key)
        if pin is None or pin.is_retired(now):
            return None
        return _raise(of, self._changing(of), [key], now)

    def introduced_by(self, of: Principal, device_id: str, now: int) -> set[str]:
        """The devices that `device_id` introduced, directly or by another one.

        Whoever removes a lost device is asked about these too.
        """
        pins, found = self._of(of).keys, set[str]()
        sources = [id for id, pin in pins.items() if pin.device_id == device_id]
        while sources:
            source = sources.pop()
            for id, pin in pins.items():
                if pin.introduced_by == source:
                    sources.append(id)
                    found |= set() if pin.is_retired(now) else {pin.device_id or ""}
        return found - {device_id, ""}

    def link(self, agent: Principal, key: bytes, now: int) -> list[Notice]:
        """Follows an agent's link, which names its key.

        It is remembered until its key is found; until then all keys that nobody verified wait.
        """
        pins = self._changing(agent)
        pins.speaks_bp1 = True
        is_new, pins.linked = pins.linked != key, key
        if not pins.keys:
            return []
        notices = _follow(agent, pins, now, is_news=True)
        # A link that is followed again takes back no acceptance.
        if is_new and pins.linked is not None:
            notices += _hold_back(agent, pins, now)
        return in_order(notices)


def _compared(pins: Pins, now: int) -> dict[bytes, Pin]:
    """The keys that a safety number stands for."""
    live = {id: pin for id, pin in pins.keys.items() if not pin.is_retired(now)}
    return {id: pin for id, pin in live.items() if pin.is_accepted(now)} or live


def _follow(of: Principal, pins: Pins, now: int, *, is_news: bool) -> list[Notice]:
    """Verifies the key of the link, or the present one that introductions lead to from it.

    `is_news`: a person is told if there is no such key.
    """
    if pins.linked is None:
        return []
    notices = _raise(of, pins, [pins.linked], now)
    is_live = any(not pin.is_retired(now) for pin in pins.verified())
    if is_live and pins.linked in pins.keys:
        pins.linked = None
    elif is_news:
        notices.append(Notice(NoticeKind.LINK_RETIRED, of, pins.linked))
    return notices


def _raise(of: Principal, pins: Pins, keys: Iterable[bytes], now: int) -> list[Notice]:
    """Verifies keys and those that they introduced. If any is verified only now, others wait."""
    before = len(pins.verified())
    for key in keys:
        pin = pins.keys.get(key)
        if pin is not None and not pin.is_retired(now):
            pin.standing = Standing.VERIFIED
        _spread(pins, key)
    return _hold_back(of, pins, now) if len(pins.verified()) > before else []


def _spread(pins: Pins, source: bytes) -> None:
    """Verifies all keys that introductions lead to from `source`."""
    sources = [source]
    while sources:
        by = sources.pop()
        for key_id, pin in pins.keys.items():
            if pin.introduced_by == by and pin.standing == Standing.INTRODUCED:
                pin.standing = Standing.VERIFIED
                sources.append(key_id)


def _hold_back(of: Principal, pins: Pins, now: int) -> list[Notice]:
    """Lets all keys wait that nobody verified. A verified key may introduce them anew."""
    notices: list[Notice] = []
    for key_id, pin in pins.keys.items():
        if pin.is_accepted(now) and pin.standing != Standing.VERIFIED:
            pin.standing, pin.introduced_by = Standing.WAITING, None
            notices.append(Notice(NoticeKind.WAITING_KEY, of, key_id))
    return in_order(notices)
