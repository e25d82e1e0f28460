"""A conversation as this client may believe it: what opens, what is shown under which notice, and
which secret may seal. Events go in, decisions come out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NotRequired, TypedDict

from . import envelope, ids, wrap
from ._bytes import from_base64
from .envelope import Delta, Header, Message, Opened, Place, Request
from .epoch import EpochKey
from .errors import E2eeError, Reason
from .keys import Principal, PrivateKeys, PublicKeys
from .trust import DirectoryKey, Notice, NoticeKind, Pin, Standing, Trust, in_order
from .wrap import OpeningKey, Wrap

_MINUTE_MS = 60_000
_DAY_MS = 24 * 60 * _MINUTE_MS
_MAX_WRAP_AHEAD_MS = 10 * _MINUTE_MS
_MAX_EPOCH_AGE_MS = 7 * _DAY_MS
_MAX_EPOCH_MESSAGES = 10_000
_MAX_TIME_APART_MS = 5 * _MINUTE_MS
_MAX_LIVE_AGE_MS = 5 * _MINUTE_MS
_NAME_BYTES = 33
_TIME_BYTES = 8
MAX_MESSAGE_AGE_MS: Final = 31 * _DAY_MS
"""How far before or after now a message may be signed that a handler is given, milliseconds."""

Visibility = Literal["all", "addressed"]
Due = Literal["change", "age"]
"""Members or keys have changed, or the server asks for it; or it has sealed for long enough."""
Given = Literal["secret", "lane"] | NoticeKind
"""A recipient's share at a rotation; a notice says why there is none."""


class Refused(E2eeError):
    """Nothing that fails is shown as said by anybody; `notices` is what the person is told."""

    def __init__(self, reason: Reason, notices: Sequence[Notice] = ()) -> None:
        super().__init__(reason)
        self.notices = list(notices)


class StoredMarks(TypedDict):
    """The marks of a conversation as a store keeps them; principals are hex."""

    epoch: int
    time: int
    members: NotRequired[dict[str, Visibility]]
    encrypted: NotRequired[bool]
    changed: NotRequired[bool]


@dataclass(frozen=True, slots=True)
class EpochMarks:
    """The highest epoch and time of all newest secrets; people keep them for ever."""

    epoch: int = 0
    time: int = 0
    members: Mapping[Principal, Visibility] | None = None
    """The members that the last seal was for. Whoever joined since is named at the next start."""
    encrypted: bool = False
    """An envelope was seen: nothing goes in clear."""
    changed: bool = False
    """Members or keys have changed since the newest secret, so a fresh one is due."""

    def store(self) -> StoredMarks:
        """For a store, as JSON."""
        marks: StoredMarks = {"epoch": self.epoch, "time": self.time}
        if self.members is not None:
            marks["members"] = {who.to_bytes().hex(): how for who, how in self.members.items()}
        if self.encrypted:
            marks["encrypted"] = True
        if self.changed:
            marks["changed"] = True
        return marks

    def merged(self, other: EpochMarks) -> EpochMarks:
        """Joins what two processes have learned at once."""
        return EpochMarks(
            max(self.epoch, other.epoch),
            max(self.time, other.time),
            self.members if self.members is not None else other.members,
            self.encrypted or other.encrypted,
            self.changed or other.changed,
        )

    @classmethod
    def stored(cls, marks: StoredMarks) -> EpochMarks:
        """From a store."""
        members = marks.get("members")
        kept: dict[Principal, Visibility] | None = None
        if members is not None:
            kept = {Principal.from_bytes(bytes.fromhex(w)): how for w, how in members.items()}
        flags = marks.get("encrypted", False), marks.get("changed", False)
        return cls(marks["epoch"], marks["time"], kept, *flags)


@dataclass(frozen=True, slots=True)
class Seal:
    """Seal with this secret."""

    epoch: int
    sid: bytes


@dataclass(frozen=True, slots=True)
class Rotate:
    """Rotate first, on this epoch of the server."""

    base: int


@dataclass(frozen=True, slots=True)
class Wait:
    """An agent cannot rotate: it waits for somebody who does."""


@dataclass(frozen=True, slots=True)
class WrapTaken:
    """The effect of a wrap. `newest`: it is the newest now."""

    epoch: int
    sid: bytes
    rotator: Principal
    newest: bool
    notices: list[Notice]


# Objects of each message are not frozen: a frozen one takes twice as long to make.
@dataclass(slots=True)
class Incoming:
    """Something that came, and what the server says of it.

    `envelope` is None if it came in clear; `live` if it came by the inbox; `answered` is the
    fingerprint of the envelope that `in_reply_to` names, if this client knows it.
    """

    sender: Principal
    place: Place
    envelope: bytes | None
    created_at: int
    live: bool = True
    answered: bytes | None = None
    max_age: int | None = None
    """An agent's own bound for the age of messages, milliseconds; at most 31 days."""


@dataclass(slots=True)
class Shown:
    """A message that may be shown, with its notices; `opened` is None if it came in clear."""

    opened: Opened | None
    standing: Standing | None
    notices: list[Notice]
    pin: Pin | None = None


@dataclass(slots=True)
class _Newest:
    key: EpochKey
    epoch: int
    sid: bytes
    time: int
    rotator: Principal
    may_seal: bool


@dataclass(slots=True)
class ServerEpoch:
    """The epoch as the server tells it; `messages` were sent in it."""

    epoch: int = 0
    rotation_required: bool = False
    messages: int = 0


@dataclass(slots=True)
class Room:
    """A conversation. `plaintext_allowed`: an agent's developer takes clear text."""

    conversation: bytes
    plaintext_allowed: bool = False
    server: ServerEpoch = field(default_factory=ServerEpoch)
    was_encrypted: bool = False
    fresh_after: int = 0
    """Secrets of before this time may not seal: somebody knows them who is to read no more."""
    _members: dict[Principal, Visibility] | None = None
    _sealed_for: dict[Principal, Visibility] | None = None
    _held: dict[tuple[int, bytes], EpochKey] = field(default_factory=dict, repr=False)
    _newest: _Newest | None = None
    _highest_epoch: int = 0
    _latest_time: int = 0
    _changed: bool = False
    _remembered: dict[bytes, int] = field(default_factory=dict, repr=False)
    """The messages that were handled, oldest first, each with the time of `remember`."""

    def epoch_key(self, epoch: int, sid: bytes) -> EpochKey | None:
        """The secret held for an epoch and a `sid`."""
        return self._held.get((epoch, sid))

    def epoch_keys(self, epoch: int) -> list[EpochKey]:
        """All secrets that are held for an epoch."""
        return [key for (held, _), key in self._held.items() if held == epoch]

    @classmethod
    def resumed(cls, conversation: bytes, plaintext_allowed: bool, marks: EpochMarks) -> Room:
        """A conversation with what a store kept of it."""
        was_encrypted = marks.encrypted or marks.epoch > 0
        room = cls(conversation, plaintext_allowed, was_encrypted=was_encrypted)
        room._highest_epoch, room._latest_time = marks.epoch, marks.time
        room._changed = marks.changed
        room._sealed_for = room._members = dict(marks.members) if marks.members else None
        return room

    @property
    def marks(self) -> EpochMarks:
        """To be kept for ever."""
        epoch, time, members = self._highest_epoch, self._latest_time, self._sealed_for
        return EpochMarks(epoch, time, members, self.was_encrypted, self._changed)

    def _is_marked(self, epoch: int, time: int) -> bool:
        return (self._highest_epoch, self._latest_time) == (epoch, time)

    def sealed(self) -> bool:
        """Something is sealed for the members of now. True if these are others than before."""
        before, self._sealed_for = self._sealed_for, self._members
        return before != self._sealed_for

    @property
    def newest(self) -> EpochKey | None:
        """The newest secret, whether it may seal or not."""
        return self._newest.key if self._newest else None

    def sealable(self) -> EpochKey | None:
        """The newest secret if it may seal, also where a rotation is due that the limit forbids."""
        newest = self._newest
        may = newest is not None and newest.may_seal and self.server.epoch >= newest.epoch
        return newest.key if newest and may else None

    def members(self, members: Mapping[Principal, Visibility]) -> list[Notice]:
        """The members as the person is shown them from now on."""
        before, self._members = self._members, dict(members)
        if before is None:
            return []
        notices = []
        for member, visibility in members.items():
            if member not in before:
                notices.append(Notice(NoticeKind.MEMBER_ADDED, member))
            elif before[member] == "addressed" and visibility == "all":
                notices.append(Notice(NoticeKind.AGENT_SEES_ALL, member))
            elif before[member] != visibility:
                self._changed = True
        gone = (member for member in before if member not in members)
        notices.extend(Notice(NoticeKind.MEMBER_REMOVED, member) for member in gone)
        self._changed |= bool(notices)
        return in_order(notices)

    def is_member(self, who: Principal) -> bool:
        """Whether the person is shown `who` as a member."""
        return self._members is not None and who in self._members

    def keys_changed(self, of: Principal) -> None:
        """The keys of somebody changed, in the directory or by a person."""
        self._changed |= self.is_member(of)

    def wrap(
        self,
        trust: Trust,
        keys: Sequence[PrivateKeys | OpeningKey],
        epoch: int,
        data: bytes,
        now: int,
    ) -> WrapTaken:
        """Takes a wrap. It replaces no secret that is held."""
        recipient = wrap.recipient_key(data)
        key = next((key for key in keys if key.key_id == recipient), None)
        if key is None:
            raise E2eeError("no_epoch_key")

        def trusted(of: Principal, id: bytes) -> Pin | None:
            pin = trust.pin(of, id)
            return pin if pin and pin.standing > Standing.WAITING else None

        def signer(of: Principal, id: bytes) -> PublicKeys | None:
            pin = trusted(of, id)
            return pin.keys if pin else None

        opened = wrap.open(data, self.conversation, epoch, trust.me, key, signer)
        self.was_encrypted = True
        pin = trusted(opened.rotator, opened.rotator_key)
        signed = pin is not None and _signed_by(opened, pin)
        newest = signed and self._becomes_newest(opened, now)
        if newest and pin is not None:
            self._newest_is(opened, pin.is_accepted(now) and self.is_member(opened.rotator))
        trust.heard(opened.rotator)
        return self._hold(opened, newest)

    def _becomes_newest(self, opened: Wrap, now: int) -> bool:
        above = opened.key.epoch > self._highest_epoch or opened.time > self._latest_time
        # Marks outlive the program; the secret itself is read from the server again.
        marked = self._newest is None and self._is_marked(opened.key.epoch, opened.time)
        return (above or marked) and opened.time <= now + _MAX_WRAP_AHEAD_MS

    def _newest_is(self, opened: Wrap, may_seal: bool) -> None:
        key = opened.key
        # The secret of before a restart answers no change that was found after it.
        is_resumed = self._is_marked(key.epoch, opened.time)
        self._changed &= is_resumed
        self._highest_epoch = max(self._highest_epoch, key.epoch)
        self._latest_time = max(self._latest_time, opened.time)
        self._newest = _Newest(key, key.epoch, key.sid, opened.time, opened.rotator, may_seal)

    def _hold(self, opened: Wrap, newest: bool) -> WrapTaken:
        key, rotator = opened.key, opened.rotator
        before = [sid for epoch, sid in self._held if epoch + 1 == key.epoch]
        notices = []
        if any(opened.previous) and before and opened.previous not in before:
            notices.append(Notice(NoticeKind.OTHER_SECRET_BEFORE, rotator, opened.rotator_key))
        self._held.setdefault((key.epoch, key.sid), key)
        return WrapTaken(key.epoch, key.sid, rotator, newest, notices)

    def sealing(self, me: Principal, answered: int | None, now: int) -> Seal | Rotate | Wait:
        """The secret that `me` seals with now; `answered` is the epoch of the message answered."""
        otherwise = Rotate(self.server.epoch) if me.is_user else Wait()
        newest = self._newest
        if newest is None or not newest.may_seal or self.server.epoch < newest.epoch:
            return otherwise
        if answered is not None and answered > newest.epoch:
            return otherwise
        due = me.is_user and self.due(now) is not None
        return otherwise if due else Seal(newest.epoch, newest.sid)

    def due(self, now: int) -> Due | None:
        """The reason why the newest secret is to be followed by a fresh one."""
        newest = self._newest
        is_known_too_far = newest is not None and newest.time < self.fresh_after
        if self._changed or self.server.rotation_required or is_known_too_far:
            return "change"
        is_old = newest is not None and now - newest.time > _MAX_EPOCH_AGE_MS
        return "age" if is_old or self.server.messages >= _MAX_EPOCH_MESSAGES else None

    def writing(
        self, trust: Trust, clear_chosen: bool
    ) -> Literal["encrypted", "clear", "ask_person"]:
        """How to write here; a conversation that was encrypted never goes back.

        `clear_chosen`: the person chose to write in clear here; for an agent, it answers what came
        in clear. `ask_person`: somebody does not speak `bp1`.
        """
        members = self._members
        others = [member for member in members or () if member != trust.me]
        all_speak = members is not None and all(map(trust.speaks_bp1, others))
        if self.was_encrypted or self.server.epoch > 0 or all_speak:
            return "encrypted"
        clear = clear_chosen and (trust.me.is_user or self.plaintext_allowed)
        return "clear" if clear else "ask_person"

    def give(self, trust: Trust, to: Principal, key: DirectoryKey, now: int) -> Given:
        """The shares of a rotation, for the recipients that the server lists."""
        if self._members is None or to not in self._members:
            return NoticeKind.NOT_MEMBER
        try:
            keys = PublicKeys(key.public_key, key.signing_public_key)
        except E2eeError:
            return NoticeKind.UNUSABLE_KEY
        pin = trust.pin(to, keys.key_id)
        if pin is not None and pin.is_retired(now):
            return NoticeKind.RETIRED_KEY
        if pin is None or not pin.is_accepted(now):
            return NoticeKind.WAITING_KEY
        return "secret" if self._members[to] == "all" else "lane"

    def message(self, trust: Trust, incoming: Incoming, now: int) -> Shown | None:
        """Decides about a message or a delta. None: it was here before. Raises `Refused`."""
        if incoming.envelope is None:
            return self._clear(trust, incoming)
        shown = self.open(trust, incoming, now)
        place, sender = incoming.place, incoming.sender
        if isinstance(place, Message):
            time = shown.opened.time if shown.opened else now
            if self.remember(sender, place.client_message_id, time, now) is None:
                return None
        elif isinstance(place, Delta):
            ended = ids.from_ulid(place.stream_id)
            if ended is not None and self.is_remembered(sender, ended):
                return None
        return shown

    def open(self, trust: Trust, incoming: Incoming, now: int) -> Shown:
        """Opens what came, and says what is to be said of it; nothing is remembered yet."""
        data, sender = incoming.envelope, incoming.sender
        if data is None:
            raise Refused("clear")

        pin: Pin | None = None

        def signer(id: bytes) -> PublicKeys | None:
            nonlocal pin
            pin = trust.pin(sender, id)
            return pin.keys if pin else None

        try:
            opened = envelope.open(
                data, self.conversation, sender, incoming.place, self.epoch_key, signer
            )
        except E2eeError as error:
            raise Refused(error.reason, self._split(error.reason, data)) from None
        self.was_encrypted = True
        trust.heard(sender)
        assert pin is not None, "its key has verified the envelope"
        notices = self._judge(trust.me, pin, incoming, now)
        if _is_stale(trust.me, incoming, opened.time, now):
            raise Refused("stale")
        if abs(opened.time - incoming.created_at) > _MAX_TIME_APART_MS:
            notices.append(Notice(NoticeKind.OTHER_TIME, sender))
        place = incoming.place
        is_reply = isinstance(place, Message) and place.in_reply_to is not None
        if is_reply and not _answers(opened, incoming):
            notices.append(Notice(NoticeKind.NO_QUOTE, sender))
        return Shown(opened, pin.standing, notices, pin)

    def _judge(self, me: Principal, pin: Pin, incoming: Incoming, now: int) -> list[Notice]:
        """The notices about a sender's key; raises if nothing by it counts."""
        sender, key, notices = incoming.sender, pin.keys.key_id, []
        waits = pin.standing == Standing.WAITING
        if waits:
            notices.append(Notice(NoticeKind.WAITING_KEY, sender, key))
        is_retired = pin.is_retired(now)
        if is_retired:
            notices.append(Notice(NoticeKind.RETIRED_KEY, sender, key))
        if not self.is_member(sender):
            notices.append(Notice(NoticeKind.NOT_MEMBER, sender))
        # A message that the server stored before the key left came in time.
        in_time = pin.retired_at is not None and incoming.created_at <= pin.retired_at
        if is_retired and incoming.live and not in_time:
            raise Refused("retired_key", notices)
        if waits and not (isinstance(incoming.place, Message) and me.is_user):
            raise Refused("unknown_sender_key", notices)
        return notices

    def _split(self, reason: Reason, data: bytes) -> list[Notice]:
        """A message of the current epoch under an unknown secret: another was given another."""
        if reason != "no_epoch_key" or self._newest is None:
            return []
        header = Header.parse(data)
        if header.epoch != self._newest.epoch or (header.epoch, header.sid) in self._held:
            return []
        return [Notice(NoticeKind.OTHER_SECRET, self._newest.rotator)]

    def _clear(self, trust: Trust, incoming: Incoming) -> Shown:
        """Nothing in clear is taken for said where encryption is possible."""
        allowed = trust.me.is_user or (self.plaintext_allowed and self.server.epoch == 0)
        if self.was_encrypted or not isinstance(incoming.place, Message) or not allowed:
            raise Refused("clear")
        return Shown(None, None, [Notice(NoticeKind.NOT_ENCRYPTED, incoming.sender)])

    def is_remembered(self, sender: Principal, client_message_id: bytes) -> bool:
        """Whether this message was handled before."""
        return sender.to_bytes() + client_message_id in self._remembered

    def remember(
        self, sender: Principal, client_message_id: bytes, time: int, now: int
    ) -> int | None:
        """A message that was signed at `time`, and handled, is not handled again.

        Forgets those whose time is more than 31 days before `now`: no handler is given these.
        Answers the time that a store is to keep, Unix milliseconds: `now`, or the signed one if
        that is later. None if the message was here before.
        """
        name, remembered = sender.to_bytes() + client_message_id, self._remembered
        if name in remembered:
            return None
        at = remembered[name] = min(max(time, now), now + MAX_MESSAGE_AGE_MS)
        while remembered[oldest := next(iter(remembered))] < now - MAX_MESSAGE_AGE_MS:
            del remembered[oldest]
        return at

    @property
    def remembered(self) -> bytes:
        """The messages that were handled, oldest first, for `remember_all`."""
        each = self._remembered.items()
        return b"".join(name + at.to_bytes(_TIME_BYTES, "big") for name, at in each)

    def remember_all(self, kept: bytes) -> None:
        """The messages of `remembered`: a `kept_message` each."""
        length = _NAME_BYTES + _TIME_BYTES
        for start in range(0, len(kept), length):
            end = start + _NAME_BYTES
            at = int.from_bytes(kept[end : start + length], "big")
            self._remembered.setdefault(kept[start:end], at)


def kept_message(sender: Principal, client_message_id: bytes, at: int) -> bytes:
    """17 bytes of the sender, 16 of the message, and 8 of the time of `Room.remember`."""
    return sender.to_bytes() + client_message_id + at.to_bytes(_TIME_BYTES, "big")


def _signed_by(opened: Wrap, pin: Pin) -> bool:
    try:
        opened.verify(pin.keys)
    except E2eeError:
        return False
    return True


def _answers(opened: Opened, incoming: Incoming) -> bool:
    """Whether `re` names the envelope that `in_reply_to` does."""
    re = opened.json.get("re")
    if not isinstance(re, str) or incoming.answered is None:
        return False
    try:
        return from_base64(re) == incoming.answered
    except E2eeError:
        return False


def _is_stale(me: Principal, incoming: Incoming, time: int, now: int) -> bool:
    """Handlers get no message of another time; nobody gets an old delta or tool request."""
    match incoming.place:
        case Delta() | Request():
            return abs(now - time) > _MAX_LIVE_AGE_MS
        case Message():
            max_age = MAX_MESSAGE_AGE_MS
            if incoming.max_age is not None:
                max_age = min(max_age, incoming.max_age)
            # An id is forgotten in the end, so its time must have an end as well.
            is_far_off = now - time > max_age or time - now > MAX_MESSAGE_AGE_MS
            return not me.is_user and incoming.live and is_far_off
    return False
