"""The envelope: one signed and encrypted payload."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from ._bytes import (
    TAG_BYTES,
    Reader,
    fixed,
    gcm_open,
    gcm_seal,
    hkdf,
    label,
    prefixed,
    sha256,
    u32,
    u64,
)
from .content import FRONT_BYTES, MAX_CONTENT_BYTES, padded, parse
from .epoch import ADDRESSED, EVERYONE, EpochKey
from .errors import E2eeError
from .keys import Principal, PrivateKeys, PublicKeys, Secret

MAX_SLOTS: Final = 32
MAX_CACHED_HEADERS: Final = 4
NO_VIEW: Final = bytes(20)
"""The view of a sender that does not know the version and the hash of its own key list."""
_FIXED = struct.Struct(">BBBBI16s16s16s32s")
_FIXED_BYTES = _FIXED.size
_FRONT = struct.Struct(">64sQ20sI")
_SLOT_BYTES = 64
_MAX_CIPHERTEXT_BYTES = padded(FRONT_BYTES + MAX_CONTENT_BYTES) + TAG_BYTES


@dataclass(frozen=True, slots=True)
class Message:
    """The place of a message."""

    client_message_id: bytes
    in_reply_to: bytes | None = None

    kind = 1
    by_users = by_agents = True

    def context(self) -> bytes:
        """The bytes that bind an envelope to this place."""
        return self.client_message_id + (self.in_reply_to or bytes(16))


STATUS_NUMBER: Final = 2**53 - 1
"""The number under which a status of a stream is sealed."""


@dataclass(frozen=True, slots=True)
class Delta:
    """The place of a delta of a stream, of a checkpoint up to it, or of a status."""

    stream_id: str
    n: int

    kind = 2
    by_users, by_agents = False, True

    def context(self) -> bytes:
        """The bytes that bind an envelope to this place."""
        return prefixed(self.stream_id) + u64(self.n)


@dataclass(frozen=True, slots=True)
class Request:
    """The clear part of a tool request; `asked` is the user."""

    asked: bytes
    request_id: str
    tool: str
    scope: str
    device_id: str | None = None

    kind = 3
    by_users, by_agents = False, True

    def context(self) -> bytes:
        """The bytes that bind an envelope to this place."""
        fields = (self.request_id, self.tool, self.scope, self.device_id or "")
        return self.asked + b"".join(map(prefixed, fields))

    def digest(self, conversation: bytes, agent: bytes, content: bytes) -> bytes:
        """Names a request with all that it says: a consent is to this request only."""
        by = Principal.agent(agent).to_bytes()
        return sha256(label("request"), conversation, by, self.context(), content)


@dataclass(frozen=True, slots=True)
class Response:
    """The clear part of a response; `digest` is of the request as it was understood."""

    digest: bytes
    request_id: str
    status: str
    reason: str | None = None

    kind = 4
    by_users, by_agents = True, False

    def context(self) -> bytes:
        """The bytes that bind an envelope to this place."""
        fields = (self.request_id, self.status, self.reason or "")
        return self.digest + b"".join(map(prefixed, fields))


Place = Message | Delta | Request | Response


def _may_write(place: Place, sender: Principal) -> bool:
    return place.by_users if sender.is_user else place.by_agents


def _least_padded(place: Place) -> int:
    return 256 if isinstance(place, Delta) else 128


# Objects of each envelope are not frozen: a frozen one takes twice as long to make.
@dataclass(slots=True)
class Header:
    """All of an envelope that is not secret."""

    kind: int
    epoch: int
    sid: bytes
    sender_key: bytes
    writer_lane: bytes | None
    readers: tuple[bytes, ...]
    raw: bytes = field(repr=False)

    @classmethod
    @lru_cache(MAX_CACHED_HEADERS)
    def parse(cls, envelope: bytes) -> Header:
        """Reads a header. An opening client asks twice: for the keys, and to open."""
        if envelope and envelope[0] != 1:
            raise E2eeError("unknown_version")
        at = Reader(envelope)
        _, kind, lane, slots, epoch, sid, sender_key, _, _ = _FIXED.unpack(at.take(_FIXED_BYTES))
        if slots > MAX_SLOTS or not (lane == EVERYONE or (lane == ADDRESSED and slots == 0)):
            raise E2eeError("malformed")
        writer = at.take(16) if lane == ADDRESSED else None
        readers = tuple(at.take(_SLOT_BYTES)[:16] for _ in range(slots)) if slots else ()
        left = len(at.rest())
        if (slots and not _rising(readers)) or not TAG_BYTES <= left <= _MAX_CIPHERTEXT_BYTES:
            raise E2eeError("malformed")
        if kind not in (1, 2, 3, 4):
            raise E2eeError("unknown_kind")
        raw = envelope[: len(envelope) - left]
        return cls(kind, epoch, sid, sender_key, writer, readers, raw)

    @property
    def salt(self) -> bytes:
        """The 16 bytes that make the keys of each envelope others."""
        return self.raw[40:56]

    @property
    def commitment(self) -> bytes:
        """The 32 bytes that bind an envelope to one key."""
        return self.raw[56:88]

    def _message_key(self, key: EpochKey) -> bytes:
        """The key of this envelope, by the reader's lane or by its slot."""
        if self.writer_lane is None and key.lane_agent is not None:
            return self._slot(key.lane_agent, key.secret)
        writer = self.writer_lane
        lane = key.everyone() if writer is None else key.addressed(writer)
        if lane is None:
            raise E2eeError("no_epoch_key")
        return _message_key(lane, self.salt)

    def _slot(self, reader: bytes, lane: Secret) -> bytes:
        if reader not in self.readers:
            raise E2eeError("no_epoch_key")
        start = _FIXED_BYTES + _SLOT_BYTES * self.readers.index(reader)
        sealed = self.raw[start + 16 : start + _SLOT_BYTES]
        keys = hkdf(lane.expose(), self.salt, label("slot"), 44)
        return gcm_open(keys[:32], keys[32:], self.raw[:_FIXED_BYTES], sealed)


@dataclass(slots=True)
class Opened:
    """An envelope that opened. `time` is in Unix milliseconds by the sender's clock."""

    header: Header
    time: int
    view: bytes
    content: bytes = field(repr=False)
    json: dict[str, Any] = field(repr=False)


def _rising(ids: Sequence[bytes]) -> bool:
    return all(one < next for one, next in zip(ids, ids[1:]))


def _message_key(lane: Secret, salt: bytes) -> bytes:
    return hkdf(lane.expose(), salt, label("message"), 32)


def _content_keys(message: bytes) -> tuple[bytes, bytes, bytes]:
    """Key, nonce and commitment."""
    keys = hkdf(message, b"", label("content"), 76)
    return keys[:32], keys[32:44], keys[44:]


def _aad(header: bytes, conversation: bytes, sender: Principal, place: Place) -> bytes:
    return label("aad") + header + conversation + sender.to_bytes() + place.context()


def _signed(aad: bytes, time: int, view: bytes, content: bytes) -> bytes:
    return label("sign") + sha256(aad) + u64(time) + view + content


def seal(
    key: EpochKey,
    sender: Principal,
    sender_keys: PrivateKeys,
    place: Place,
    time: int,
    content: bytes,
    *,
    readers: Sequence[bytes] = (),
    view: bytes = NO_VIEW,
) -> bytes:
    """Seals a content. `readers` are the `addressed` agents that may read it too."""
    salt = os.urandom(16)
    return _seal_with(salt, key, sender, sender_keys, place, time, content, readers, view)


def _seal_with(
    salt: bytes,
    key: EpochKey,
    sender: Principal,
    sender_keys: PrivateKeys,
    place: Place,
    time: int,
    content: bytes,
    readers: Sequence[bytes],
    view: bytes,
) -> bytes:
    """For vectors: a salt that is used twice gives the contents away."""
    if not _may_write(place, sender):
        raise E2eeError("unknown_kind")
    parse(content)
    lane, lane_secret = _writer_lane(key, sender, readers)
    message = _message_key(lane_secret, salt)
    content_key, nonce, commitment = _content_keys(message)
    if len(view) != 20 or len(salt) != 16:
        raise E2eeError("malformed")
    header = (
        bytes([1, place.kind, lane, len(readers)])
        + fixed(key.epoch, 4)
        + key.sid
        + sender_keys.key_id
        + salt
        + commitment
    )
    header += _tail(key, readers, salt, header, message)
    aad = _aad(header, key.conversation, sender, place)
    signature = sender_keys.sign(_signed(aad, time, view, content))
    front = signature + u64(time) + view + u32(len(content)) + content
    plaintext = front.ljust(padded(len(front), _least_padded(place)), b"\0")
    return header + gcm_seal(content_key, nonce, aad, plaintext)


def _writer_lane(
    key: EpochKey, sender: Principal, readers: Sequence[bytes]
) -> tuple[int, Secret]:
    if len(readers) > MAX_SLOTS or not _rising(readers):
        raise E2eeError("malformed")
    everyone = key.everyone()
    if everyone is not None:
        return EVERYONE, everyone
    if readers or key.lane_agent is None or sender != Principal.agent(key.lane_agent):
        raise E2eeError("malformed")
    return ADDRESSED, key.secret


def _tail(
    key: EpochKey, readers: Sequence[bytes], salt: bytes, header: bytes, message: bytes
) -> bytes:
    """The agent whose lane it is, or the slots."""
    tail = key.lane_agent or b""
    for agent in readers:
        lane = key.addressed(agent)
        assert lane is not None
        keys = hkdf(lane.expose(), salt, label("slot"), 44)
        tail += agent + gcm_seal(keys[:32], keys[32:], header, message)
    return tail


def open(
    envelope: bytes,
    conversation: bytes,
    sender: Principal,
    place: Place,
    epoch_key: Callable[[int, bytes], EpochKey | None],
    signer: Callable[[bytes], PublicKeys | None],
) -> Opened:
    """Opens an envelope found at `place`, said to be by `sender`.

    `epoch_key` answers the secret held for an epoch and a `sid`; `signer` answers the keys that the
    sender has under a key id.
    """
    header = Header.parse(envelope)
    if header.writer_lane is not None and sender != Principal.agent(header.writer_lane):
        raise E2eeError("malformed")
    if header.kind != place.kind or not _may_write(place, sender):
        raise E2eeError("unknown_kind")
    key = epoch_key(header.epoch, header.sid)
    if key is None:
        raise E2eeError("no_epoch_key")
    content_key, nonce, commitment = _content_keys(header._message_key(key))
    if commitment != header.commitment:
        raise E2eeError("wrong_key")
    aad = _aad(header.raw, conversation, sender, place)
    plaintext = gcm_open(content_key, nonce, aad, envelope[len(header.raw) :])
    signature, time, view, content = _parts(plaintext, place)
    keys = signer(header.sender_key)
    if keys is None or keys.key_id != header.sender_key:
        raise E2eeError("unknown_sender_key")
    keys.verify(_signed(aad, time, view, content), signature)
    return Opened(header, time, view, content, parse(content))


def _parts(plaintext: bytes, place: Place) -> tuple[bytes, int, bytes, bytes]:
    """Signature, time, view and content of a plaintext."""
    if len(plaintext) < FRONT_BYTES:
        raise E2eeError("bad_padding")
    signature, time, view, size = _FRONT.unpack_from(plaintext)
    end = FRONT_BYTES + size
    if padded(end, _least_padded(place)) != len(plaintext) or plaintext[end:].strip(b"\0"):
        raise E2eeError("bad_padding")
    return signature, time, view, plaintext[FRONT_BYTES:end]


def fingerprint(envelope: bytes) -> bytes:
    """The field `re` of a payload that answers an envelope: it names that envelope."""
    return sha256(envelope)
