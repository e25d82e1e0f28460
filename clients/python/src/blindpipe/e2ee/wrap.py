"""Wraps: a secret of an epoch, sealed for one device or agent and signed by the rotator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite

from ._bytes import Reader, label, u32, u64
from .epoch import EpochKey
from .errors import E2eeError
from .keys import Principal, PrivateKeys, PublicKeys, Secret

WRAP_BYTES: Final = 235
NOT_GIVEN: Final = b"\0"
"""The wrap of a recipient who is given nothing."""

_SUITE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.AES_256_GCM)
_EPOCH_SECRET = 1
_LANE_SECRET = 2
_SIGNED_BYTES = 106


@dataclass(frozen=True, slots=True)
class OpeningKey:
    """The private keys that open wraps: a device's own, or earlier ones from a backup."""

    key_id: bytes
    x25519: Secret


Directory = Callable[[Principal, bytes], PublicKeys | None]


@dataclass(frozen=True, slots=True)
class Rotation:
    """A rotation, as it is written into every wrap; `time` is in Unix milliseconds."""

    key: EpochKey
    rotator: bytes
    rotator_keys: PrivateKeys
    time: int
    previous: bytes = bytes(16)


@dataclass(frozen=True, slots=True)
class Wrap:
    """The content of a wrap."""

    key: EpochKey
    previous: bytes
    rotator: Principal
    rotator_key: bytes
    time: int
    _signed: bytes = field(repr=False)
    _signature: bytes = field(repr=False)

    def verify(self, keys: PublicKeys) -> None:
        """Raises `bad_signature` if the rotator did not sign this with `keys`."""
        keys.verify(self._signed, self._signature)


def _info(conversation: bytes, epoch: int, recipient: Principal, key_id: bytes) -> bytes:
    return label("wrap") + conversation + u32(epoch) + recipient.to_bytes() + key_id


def seal(
    rotation: Rotation, recipient: Principal, keys: PublicKeys, addressed: bool = False
) -> bytes:
    """Wraps for one recipient; an `addressed` agent is given its lane only."""
    key = rotation.key
    if key.lane_agent is not None or (addressed and recipient.is_user):
        raise E2eeError("malformed")
    secret = key.addressed(recipient.id) if addressed else key.secret
    assert secret is not None
    info = _info(key.conversation, key.epoch, recipient, keys.key_id)
    plaintext = (
        bytes([_LANE_SECRET if addressed else _EPOCH_SECRET])
        + secret.expose()
        + key.sid
        + rotation.previous
        + Principal.user(rotation.rotator).to_bytes()
        + rotation.rotator_keys.key_id
        + u64(rotation.time)
    )
    plaintext += rotation.rotator_keys.sign(label("wrap-sign") + info + plaintext)
    public = X25519PublicKey.from_public_bytes(keys.public_key)
    return b"\1" + keys.key_id + _SUITE.encrypt(plaintext, public, info)


def recipient_key(wrap: bytes) -> bytes:
    """The key that a wrap was made for, so that a holder of several finds the right one."""
    if wrap == NOT_GIVEN:
        raise E2eeError("no_epoch_key")
    if wrap and wrap[0] != 1:
        raise E2eeError("unknown_version")
    if len(wrap) != WRAP_BYTES:
        raise E2eeError("malformed")
    return wrap[1:17]


def open(
    wrap: bytes,
    conversation: bytes,
    epoch: int,
    recipient: Principal,
    keys: PrivateKeys | OpeningKey,
    rotator_keys: Directory,
) -> Wrap:
    """Opens a wrap. `rotator_keys` is asked for a lane's secret only: its `sid` proves nothing."""
    if recipient_key(wrap) != keys.key_id:
        raise E2eeError("no_epoch_key")
    info = _info(conversation, epoch, recipient, keys.key_id)
    try:
        private = X25519PrivateKey.from_private_bytes(keys.x25519.expose())
        plaintext = _SUITE.decrypt(wrap[17:], private, info)
    except (InvalidTag, ValueError):
        raise E2eeError("bad_ciphertext") from None
    at = Reader(plaintext)
    kind, secret, sid = at.number(1), Secret(at.take(32)), at.take(16)
    if kind == _EPOCH_SECRET:
        key = EpochKey.new(conversation, epoch, secret)
    elif kind == _LANE_SECRET and not recipient.is_user:
        key = EpochKey(conversation, epoch, sid, secret, recipient.id)
    else:
        raise E2eeError("unknown_kind")
    previous, rotator = at.take(16), Principal.from_bytes(at.take(17))
    if not rotator.is_user:
        raise E2eeError("malformed")
    if key.sid != sid:
        raise E2eeError("wrong_key")
    signed = label("wrap-sign") + info + plaintext[:_SIGNED_BYTES]
    rotator_key, time, signature = at.take(16), at.number(8), at.take(64)
    opened = Wrap(key, previous, rotator, rotator_key, time, signed, signature)
    if kind == _LANE_SECRET:
        signer = rotator_keys(rotator, rotator_key)
        if signer is None:
            raise E2eeError("unknown_sender_key")
        opened.verify(signer)
    return opened
