"""A principal's knowledge of its conversations: rooms, members, keys, secrets.

Everything that is sealed or opened passes here. Reads of the server fill what is missing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final
from weakref import WeakValueDictionary

from ..e2ee import (
    E2eeError,
    EpochKey,
    Principal,
    PrivateKeys,
    envelope,
    from_base64,
    ids,
    to_base64,
)
from ..e2ee import content as contents
from ..e2ee._texts import Texts
from ..e2ee.approval import clear_content
from ..e2ee.envelope import Delta, Header, Place
from ..e2ee.envelope import Message as MessagePlace
from ..e2ee.room import (
    EpochMarks,
    Incoming,
    Room,
    ServerEpoch,
    Shown,
    StoredMarks,
    kept_message,
)
from ..e2ee.trust import Notice, NoticeKind, Trust
from ..e2ee.wrap import OpeningKey
from ..errors import BlindpipeError, KeyUnavailable
from ..transport.clock import now_ms
from ..transport.http import Call, Http
from .directory import Directory, Recipient
from .key_events import whose_keys
from .large import resolved_content
from .opened import Envelopes, OpenedMessage, proven
from .payload import envelope_of, payload_of
from .types import (
    ConversationInfo,
    Event,
    JsonObject,
    Member,
    Message,
    Sent,
    is_sealed,
    milliseconds,
)

OnNotice = Callable[[Notice, str | None], None]
"""Told a notice, and the conversation where it stands if there is one."""


MAX_ROOMS: Final = 1_000
"""The conversations in memory. Of all others, their marks and the handled messages are kept."""
MIN_REREAD_MS: Final = 5_000
"""Members are not read again for somebody unknown within this time."""


def _nobody() -> None:
    """The listener of those who keep nothing."""


@dataclass(frozen=True, slots=True)
class Handled:
    """A message that was handled."""

    at: int
    """When it was handled, or signed if that is later; Unix milliseconds."""
    conversation_id: str
    sender: Principal
    client_message_id: bytes


_LAST: Final = datetime.max.replace(tzinfo=UTC)
_LAST_MS: Final = _LAST.timestamp() * 1000


def signed_at(time: int) -> datetime:
    """A signed time, Unix milliseconds, as a date. One beyond the last date is that date."""
    return datetime.fromtimestamp(time / 1000, UTC) if time < _LAST_MS else _LAST


def _no_store(_handled: Handled) -> None:
    """The listener of those who keep nothing of it."""


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """The parts of a session."""

    http: Http
    me: Principal
    signer: PrivateKeys | None
    """The keys that sign; None for a principal without keys, which speaks clear."""
    opening: Sequence[PrivateKeys | OpeningKey]
    """The keys that open wraps, the signer's own first."""
    device_id: str | None
    trust: Trust
    marks: Mapping[str, EpochMarks]
    allows_clear: bool
    """An agent's developer takes clear text."""
    on_notice: OnNotice
    on_trust_changed: Callable[[], None] = _nobody
    """Pins or marks have changed, which a store keeps."""
    max_age_ms: int | None = None
    """An agent's bound for the age of messages."""
    on_handled: Callable[[Handled], None] = _no_store
    """A message was handled, which a store keeps too."""


@dataclass(slots=True, weakref_slot=True, eq=False)
class Entry:
    """A conversation, as far as it is known."""

    id: str
    room: Room
    info: ConversationInfo | None = None
    recipients: Sequence[Recipient] = ()
    is_stale: bool = True
    """Members or their keys have changed since they were read."""
    read_at: int = 0
    """The last reading, in Unix milliseconds."""
    refused_since: int | None = None
    """The first refusal of a fresh secret since the newest one came, in Unix milliseconds."""
    noted: EpochMarks = EpochMarks()
    """The marks that a store was told of."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    envelopes: Envelopes = field(default_factory=Envelopes)


class Session:
    """All conversations of one principal."""

    def __init__(self, options: SessionOptions) -> None:
        self.options = options
        changed = options.on_trust_changed
        self.directory = Directory(options.http, options.trust, self._on_key_notice, changed)
        self._entries = WeakValueDictionary[str, Entry]()
        self._recent: dict[str, Entry] = {}
        # Of rooms that are not in memory: their marks, and the messages that were handled.
        self._marks = Texts()
        self._handled: dict[str, bytes] = {}
        self._changed: set[str] = set()
        self._fresh_after = 0
        self._fresh: dict[str, int] = {}

    def _on_key_notice(self, notice: Notice) -> None:
        for entry in self._entries.values():
            entry.room.keys_changed(notice.about)
            self._note_marks(entry)
        if self.options.me.is_user:
            self._note_changed(notice.about)
        self.options.on_notice(notice, None)

    def _note_changed(self, who: Principal) -> None:
        """A rotation is due where `who` reads, also where the room is not in memory."""
        for id, marks in self.marks().items():
            if id not in self._entries and not marks.changed and who in (marks.members or ()):
                self._put_marks(id, replace(marks, changed=True))

    def _note_marks(self, entry: Entry) -> None:
        """Tells the store of marks that are others than before."""
        marks = entry.room.marks
        if marks != entry.noted:
            entry.noted = marks
            self._put_marks(entry.id, marks)

    def _put_marks(self, id: str, marks: EpochMarks) -> None:
        self._marks.put(id, marks.store())
        self._changed.add(id)
        self.options.on_trust_changed()

    @property
    def has_keys(self) -> bool:
        """Whether this principal encrypts."""
        return self.options.signer is not None

    def _entry(self, conversation_id: str) -> Entry:
        """The conversation as it is known. Of all, those that were used last are in memory."""
        entry = self._recent.pop(conversation_id, None)
        if entry is None:
            entry = self._entries.get(conversation_id) or self._resumed(conversation_id)
            self._entries[conversation_id] = entry
        self._recent[conversation_id] = entry
        if len(self._recent) > MAX_ROOMS:
            self._evict(next(iter(self._recent)))
        return entry

    def _resumed(self, conversation_id: str) -> Entry:
        id, marks = ids.parse(conversation_id), self._marks_of(conversation_id)
        room = Room.resumed(id, self.options.allows_clear, marks)
        room.fresh_after = max(self._fresh_after, self._fresh.get(conversation_id, 0))
        room.remember_all(self._handled.pop(conversation_id, b""))
        return Entry(conversation_id, room, noted=marks)

    def _evict(self, conversation_id: str) -> None:
        """Lets a room go. A task that still has it keeps it, and others find it there."""
        entry = self._recent.pop(conversation_id)
        if entry.refused_since is not None:
            # The time of a refusal ends the grace, so it is not forgotten.
            self._recent[conversation_id] = entry
        elif remembered := entry.room.remembered:
            self._handled[conversation_id] = remembered

    def _marks_of(self, conversation_id: str) -> EpochMarks:
        noted: StoredMarks | None = self._marks.get(conversation_id)
        if noted is not None:
            return EpochMarks.stored(noted)
        return self.options.marks.get(conversation_id, EpochMarks())

    def marks(self) -> dict[str, EpochMarks]:
        """Epochs and times that a store keeps."""
        noted = {id: EpochMarks.stored(marks) for id, marks in self._marks.items()}
        return {**self.options.marks, **noted}

    def take_changed(self) -> dict[str, StoredMarks]:
        """The marks that have changed since the last question."""
        changed, self._changed = self._changed, set()
        return {id: self._marks[id] for id in changed}

    def take_over(
        self, marks: Mapping[str, StoredMarks], handled: Iterable[Handled]
    ) -> None:
        """Takes over what another process of this principal has stored."""
        for id, stored in marks.items():
            theirs = EpochMarks.stored(stored)
            if id in self._changed:
                theirs = EpochMarks.stored(self._marks[id]).merged(theirs)
            self._marks.put(id, theirs.store())
            # Its room begins anew with these marks when it is used.
            entry = self._entries.pop(id, None)
            if entry is not None:
                self._recent.pop(id, None)
                self._handled[id] = entry.room.remembered
        for each in handled:
            kept = kept_message(each.sender, each.client_message_id, each.at)
            id, entry = each.conversation_id, self._entries.get(each.conversation_id)
            if entry is not None:
                entry.room.remember_all(kept)
            else:
                self._handled[id] = self._handled.get(id, b"") + kept

    def take_from(self, before: Session) -> None:
        """Goes on where a session without keys has stopped."""
        self._marks, self._changed = before._marks, before._changed
        self._fresh_after, self._fresh = before._fresh_after, before._fresh
        self._handled = before._handled
        for id, entry in before._entries.items():
            self._handled[id] = entry.room.remembered

    def not_kept(self, changed: Iterable[str]) -> None:
        """A store did not keep what `take_changed` gave."""
        self._changed.update(changed)

    async def load(self, conversation_id: str) -> Entry:
        """The conversation with its members, their keys, and this member's newest wrap."""
        entry = self._entry(conversation_id)
        if not entry.is_stale and not entry.lock.locked():
            return entry
        async with entry.lock:
            if entry.is_stale:
                await self._read(conversation_id, entry)
        return entry

    async def _read(self, conversation_id: str, entry: Entry) -> None:
        # An event that comes meanwhile makes it stale again.
        entry.is_stale, entry.read_at = False, now_ms()
        try:
            await self._read_now(conversation_id, entry)
        except BaseException:
            entry.is_stale = True
            raise

    async def _read_now(self, conversation_id: str, entry: Entry) -> None:
        path = f"/conversations/{conversation_id}"
        info: ConversationInfo = await self.options.http.data(Call("GET", path))
        entry.info = info
        _set_server_epoch(entry, info["epoch"], info["rotation_required"])
        members = {_principal_of(member): member for member in info.get("members") or ()}
        is_pair = info["type"] in ("direct", "agent")
        if is_pair and (len(members) > 2 or self.options.me not in members):
            # Two people, or a person and an agent: nobody joins them.
            raise E2eeError("malformed")
        visible = {who: member.get("visibility") or "all" for who, member in members.items()}
        self._tell(entry.room.members(visible), conversation_id)
        self._note_marks(entry)
        if not self.has_keys:
            return
        # An agent's own list says nothing new to it; a person's devices are given secrets too.
        me = self.options.me
        asked = [member for who, member in members.items() if me.is_user or who != me]
        entry.recipients = await self.directory.recipients(conversation_id, asked)
        if info["epoch"] > 0:
            await self.read_wraps(conversation_id, entry)

    def _tell(self, notices: Sequence[Notice], conversation_id: str) -> None:
        for notice in notices:
            self.options.on_notice(notice, conversation_id)

    async def read_wraps(
        self, conversation_id: str, entry: Entry, epoch: int | None = None
    ) -> None:
        """Reads this member's wraps of an epoch; of the current one without a number."""
        path = f"/keys/groups/{conversation_id}"
        try:
            found = await self.options.http.data(Call("GET", path, {"epoch": epoch}))
        except BlindpipeError as error:
            # A wrap that is not there is an answer; a read that failed is none.
            if error.status == 404:
                return
            raise
        _set_server_epoch(entry, found["current_epoch"], found["rotation_required"])
        self.take_wraps(conversation_id, entry, found["epoch"], found["wrapped_keys"])

    def take_wraps(
        self, conversation_id: str, entry: Entry, epoch: int, wraps: Sequence[JsonObject]
    ) -> None:
        """Takes what opens; restored keys also open what was wrapped for earlier devices."""
        for wrap in wraps:
            try:
                data = from_base64(wrap["wrapped_key"])
                taken = entry.room.wrap(
                    self.options.trust, self.options.opening, epoch, data, now_ms()
                )
            except E2eeError:
                # A secret that does not open is found missing when it is needed.
                continue
            self._tell(taken.notices, conversation_id)
            if taken.newest:
                entry.refused_since = None
        self._note_marks(entry)

    def rotated(self, conversation_id: str, entry: Entry, epoch: int, own: str) -> None:
        """The server has accepted this client's rotation."""
        _set_server_epoch(entry, epoch, False)
        self.take_wraps(conversation_id, entry, epoch, [{"wrapped_key": own}])

    def observe(self, event: Event) -> None:
        """Takes note of what an event says about keys and members, as soon as it has come.

        It asks the service nothing. `learn` does that, when it is the event's turn.
        """
        data = event["data"]
        if who := whose_keys(event):
            self._keys_changed(who)
        match event["event"]:
            case "key.rotated":
                self._observe_rotation(data)
            case (
                "member.added"
                | "member.removed"
                | "conversation.updated"
                | "relation.created"
                | "relation.revoked"
            ):
                self.forget(str(event.get("conversation_id") or data.get("conversation_id")))

    async def learn(self, event: Event) -> None:
        """Reads the keys that an event has changed, if they were known before."""
        who = whose_keys(event)
        if who is not None and self.options.trust.is_known(who):
            await self.directory.refresh(who)

    def missed_events(self) -> None:
        """The server cannot say what happened meanwhile, so everything is read again."""
        for entry in self._entries.values():
            entry.is_stale = True

    def forget(self, conversation_id: str) -> None:
        """Members or keys have changed by one's own act, whose event comes later."""
        entry = self._entries.get(conversation_id)
        if entry is not None:
            entry.is_stale = True

    def needs_fresh_secret(self, conversation_id: str | None = None) -> None:
        """By one's own act, what was sealed with until now may seal no more: here, or anywhere.

        It does not depend on what the server says of that act.
        """
        now = now_ms()
        if conversation_id is None:
            self._fresh_after, entries = now, list(self._entries.values())
        else:
            self._fresh[conversation_id] = now
            entries = [self._entry(conversation_id)]
        me = self.options.me
        for entry in entries:
            entry.room.fresh_after, entry.is_stale = now, True
            entry.room.keys_changed(me)
            # It stays due after a restart.
            self._note_marks(entry)
        if conversation_id is None:
            self._note_changed(me)

    def _observe_rotation(self, data: JsonObject) -> None:
        id = data["conversation_id"]
        entry = self._entries.get(id)
        if not self.has_keys:
            return self.saw_envelope(id)
        # An epoch that was never read is read when it is needed.
        if entry is None or entry.is_stale:
            return
        rotator = ids.principal("user", data["by"])
        if not self.options.trust.is_known(rotator) and entry.room.is_member(rotator):
            # Its keys and this secret are read when something needs them.
            entry.is_stale = True
            return
        _set_server_epoch(entry, max(entry.room.server.epoch, data["epoch"]), False)
        self.take_wraps(id, entry, data["epoch"], data["wrapped_keys"])

    def _keys_changed(self, who: Principal) -> None:
        for entry in self._entries.values():
            if entry.room.is_member(who):
                entry.is_stale = True

    def reconsider(self, who: Principal) -> None:
        """After a key was accepted: what waited under it is read again."""
        for entry in self._entries.values():
            if entry.room.is_member(who):
                entry.room.keys_changed(who)
                self._note_marks(entry)
                entry.is_stale = True

    async def open(self, conversation_id: str, incoming: Incoming) -> tuple[Shown, Entry]:
        """Opens something that was found in a conversation. Raises `E2eeError`."""
        entry = await self._found(conversation_id)
        is_read_long_ago = now_ms() - entry.read_at > MIN_REREAD_MS
        if incoming.live and is_read_long_ago and not entry.room.is_member(incoming.sender):
            # A sender that is no member is refused, so the list is read again before that.
            entry.is_stale = True
            entry = await self._found(conversation_id)
        if incoming.envelope is not None:
            self.saw_envelope(conversation_id)
        if incoming.envelope is not None and self.has_keys:
            await self._prepare(conversation_id, entry, incoming.sender, incoming.envelope)
        return entry.room.open(self.options.trust, incoming, now_ms()), entry

    async def _found(self, conversation_id: str) -> Entry:
        """The secrets of a conversation. A conversation of others has none to open with."""
        try:
            return await self.load(conversation_id)
        except BlindpipeError as error:
            if error.status in (403, 404):
                raise E2eeError("no_epoch_key") from None
            raise

    def saw_envelope(self, conversation_id: str) -> None:
        """Somebody encrypts here: nothing goes in clear from now on, whether it opens or not."""
        entry = self._entry(conversation_id)
        if not entry.room.was_encrypted:
            entry.room.was_encrypted = True
            self._note_marks(entry)

    async def was_encrypted(self, conversation_id: str) -> bool:
        """As `is_encrypted`, for what was found there. Raises `E2eeError`."""
        await self._found(conversation_id)
        return await self.is_encrypted(conversation_id)

    async def _prepare(
        self, conversation_id: str, entry: Entry, sender: Principal, data: bytes
    ) -> None:
        """Reads the secret and the key that an envelope names, where they are not in memory."""
        header = Header.parse(data)
        if entry.room.epoch_key(header.epoch, header.sid) is None:
            await self.read_wraps(conversation_id, entry, header.epoch)
        if self.options.trust.pin(sender, header.sender_key) is None:
            await self.directory.speaker(conversation_id, sender)

    async def open_message(self, message: Message, live: bool) -> OpenedMessage:
        """`live`: from the inbox, not from the history. Raises `E2eeError`."""
        sender = _sender_of(message)
        data = envelope_of(message["payload"])
        place = _place_of(message)
        known = self._entry(message["conversation_id"]).envelopes
        incoming = Incoming(
            sender,
            place,
            data,
            milliseconds(message["created_at"]),
            live,
            answered=known.get(message.get("in_reply_to")),
            max_age=self.options.max_age_ms,
        )
        shown, entry = await self.open(message["conversation_id"], incoming)
        opened, pin = shown.opened, shown.pin
        assert opened is not None and pin is not None
        told = opened.json, opened.content.decode()
        content, source = await resolved_content(self.options.http, *told)
        self._note(entry, message["message_id"], data)
        if live:
            _count(entry, opened.header.epoch)
        remembered = entry.room.is_remembered(sender, place.client_message_id)
        return OpenedMessage(
            content,
            source,
            True,
            proven(message, pin, entry.room.is_member(sender)),
            signed_at(opened.time),
            opened.header.epoch,
            to_base64(envelope.fingerprint(data)),
            live and remembered,
            shown.notices,
        )

    def _note(self, entry: Entry, message_id: str, data: bytes) -> None:
        # Only people are shown quotes.
        if self.options.me.is_user:
            entry.envelopes.note(message_id, envelope.fingerprint(data))

    def sent(self, sent: Sent, payload: JsonObject) -> None:
        """A message of one's own is stored: replies to it are told by its envelope."""
        if is_sealed(payload):
            entry = self._entry(sent["conversation_id"])
            self._note(entry, sent["message_id"], envelope_of(payload))

    def remember(self, message: Message, sent_at: datetime | None) -> None:
        """A message that was handled is not handled again under another event.

        `sent_at` is its signed time.
        """
        room = self._entry(message["conversation_id"]).room
        id = message.get("client_message_id")
        if id:
            sender, name = _sender_of(message), ids.parse(id)
            now = now_ms()
            time = now if sent_at is None else round(sent_at.timestamp() * 1000)
            at = room.remember(sender, name, time, now)
            if at is not None:
                self.options.on_handled(Handled(at, message["conversation_id"], sender, name))

    def resume_handled(self, handled: Iterable[Handled]) -> None:
        """The messages that an earlier run has handled, oldest first."""
        found: dict[str, bytearray] = {}
        for each in handled:
            kept = kept_message(each.sender, each.client_message_id, each.at)
            found.setdefault(each.conversation_id, bytearray()).extend(kept)
        for id in list(found):
            # One after the other, so that no two copies of all are in memory.
            self._handled[id] = bytes(found.pop(id))

    def is_remembered(self, conversation_id: str, sender: Principal, id: str) -> bool:
        """Whether a sealed message with this id is known, such as that which ends a stream."""
        entry = self._entries.get(conversation_id)
        if entry is None and conversation_id in self._handled:
            entry = self._entry(conversation_id)
        try:
            return entry is not None and entry.room.is_remembered(sender, ids.parse(id))
        except E2eeError:
            return False

    def clear_message(self, message: Message) -> OpenedMessage:
        """A message in clear: nobody's word but the server's."""
        notice = Notice(NoticeKind.NOT_ENCRYPTED, _sender_of(message))
        content = message["payload"] or {}
        sender = proven(message, None, True)
        source = clear_content(content)
        return OpenedMessage(content, source, False, sender, None, 0, None, False, [notice])

    async def is_encrypted(self, conversation_id: str) -> bool:
        """Whether a conversation has, or ever had, an epoch."""
        room = (await self.load(conversation_id)).room
        return room.server.epoch > 0 or room.was_encrypted

    async def seal(
        self,
        conversation_id: str,
        place: Place,
        content: JsonObject | bytes,
        *,
        answering: int | None = None,
        addressed: Sequence[str] = (),
    ) -> bytes:
        """Seals with the newest secret. Raises `KeyUnavailable`."""
        entry = await self.load(conversation_id)
        if entry.room.server.epoch > entry.room.marks.epoch:
            await self.read_wraps(conversation_id, entry)
        key = self._sealable(entry, answering)
        signer = self.options.signer
        if signer is None:
            raise KeyUnavailable()
        if entry.room.sealed():
            self._note_marks(entry)
        if isinstance(place, MessagePlace):
            _count(entry, key.epoch)
        readers = sorted({ids.parse(id) for id in addressed}) if key.lane_agent is None else []
        data = content if isinstance(content, bytes) else contents.encode(content)
        return envelope.seal(key, self.options.me, signer, place, now_ms(), data, readers=readers)

    def _sealable(self, entry: Entry, answering: int | None) -> EpochKey:
        # A person rotates before a send. Where the limit forbids that, the newest may go on for a
        # while, unless somebody was to lose it: that can have been learned since.
        key = entry.room.sealable()
        is_lost = self.options.me.is_user and entry.room.due(now_ms()) == "change"
        if key is None or is_lost or (answering or 0) > key.epoch:
            raise KeyUnavailable()
        return key

    async def seal_payload(
        self, conversation_id: str, place: Place, content: JsonObject | bytes, **options: Any
    ) -> JsonObject:
        """The payload of a sealed thing."""
        return payload_of(await self.seal(conversation_id, place, content, **options))

    async def seal_text(
        self, conversation_id: str, place: Place, content: JsonObject, **options: Any
    ) -> str:
        """A delta's bare string."""
        return to_base64(await self.seal(conversation_id, place, content, **options))

    async def open_text(
        self, conversation_id: str, text: str, place: Delta, sender: Principal
    ) -> Shown:
        """Opens a delta's bare string."""
        incoming = Incoming(sender, place, from_base64(text), now_ms())
        return (await self.open(conversation_id, incoming))[0]


def _set_server_epoch(entry: Entry, epoch: int, rotation_required: bool) -> None:
    before = entry.room.server
    messages = before.messages if before.epoch == epoch else 0
    entry.room.server = ServerEpoch(epoch, rotation_required, messages)


def _count(entry: Entry, epoch: int) -> None:
    """The server does not count the messages of an epoch, so those that pass here are counted."""
    if entry.room.server.epoch == epoch:
        entry.room.server.messages += 1


def _principal_of(member: Member) -> Principal:
    return ids.principal(member["principal_type"], member["principal_id"])


def _sender_of(message: Message) -> Principal:
    return ids.principal(message["sender"]["type"], message["sender"]["id"])


def _place_of(message: Message) -> MessagePlace:
    answered = message.get("in_reply_to")
    # A decision has no id of its own: it is named by the approval that it answers.
    id = message.get("client_message_id") or answered
    if not id:
        raise E2eeError("malformed")
    return MessagePlace(ids.parse(id), ids.parse(answered) if answered else None)
