"""Principals, their keys, key ids, introductions, and the written form of an agent's key."""

from __future__ import annotations

import base64
import binascii
import enum
import os
import zlib
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import (
    Ed25519PrivateKey,
    Ed25519PublicKey,
)
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from ._bytes import hkdf, label, prefixed, sha256
from .errors import E2eeError


MAX_CACHED_KEYS: Final = 4096
"""Most messages are signed by few."""


class Kind(enum.IntEnum):
    """A user or an agent."""

    USER = 1
    AGENT = 2


@dataclass(frozen=True, slots=True, order=True)
class Principal:
    """A user or an agent; `id` is the 16 bytes of its ULID or UUID."""

    kind: Kind
    id: bytes

    def __post_init__(self) -> None:
        if len(self.id) != 16:
            raise E2eeError("malformed")

    @classmethod
    def user(cls, id: bytes) -> Principal:
        """The user with this id of 16 bytes, else `malformed`."""
        return cls(Kind.USER, id)

    @classmethod
    def agent(cls, id: bytes) -> Principal:
        """The agent with this id of 16 bytes, else `malformed`."""
        return cls(Kind.AGENT, id)

    @classmethod
    def from_bytes(cls, data: bytes) -> Principal:
        """Reads what `to_bytes` has written, else raises `malformed`."""
        if len(data) != 17 or data[0] not in (1, 2):
            raise E2eeError("malformed")
        return cls(Kind(data[0]), data[1:])

    def to_bytes(self) -> bytes:
        """The kind in one byte, and the id: 17 bytes."""
        return bytes([self.kind]) + self.id

    @property
    def is_user(self) -> bool:
        """Whether it is a person, and no agent."""
        return self.kind == Kind.USER


class Secret:
    """32 secret bytes; never printed."""

    __slots__ = ("_data",)

    def __init__(self, data: bytes) -> None:
        if len(data) != 32:
            raise E2eeError("malformed")
        self._data = bytes(data)

    @classmethod
    def random(cls) -> Secret:
        """Fresh bytes of the system."""
        return cls(os.urandom(32))

    def expose(self) -> bytes:
        """The bytes, for a store or for the next derivation."""
        return self._data

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._data == self._data

    def __hash__(self) -> int:
        return hash(self._data)

    def __repr__(self) -> str:
        return "Secret"


# Every encoding of a point of small order on the curve of Ed25519, sign bit cleared.
ED25519_SMALL_ORDER: Final = tuple(
    bytes.fromhex(key)
    for key in (
        "00" * 32,
        "01" + "00" * 31,
        "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
        "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
        "ec" + "ff" * 30 + "7f",
        "ed" + "ff" * 30 + "7f",
        "ee" + "ff" * 30 + "7f",
    )
)
# Every encoding of a point of small order on the curve of X25519, highest bit cleared.
X25519_SMALL_ORDER: Final = (
    *ED25519_SMALL_ORDER[:2],
    bytes.fromhex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"),
    bytes.fromhex("5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157"),
    *ED25519_SMALL_ORDER[4:],
)


def _cleared(key: bytes) -> bytes:
    return key[:31] + bytes([key[31] & 0x7F])


@lru_cache(MAX_CACHED_KEYS)
def _key_id(public_key: bytes, signing_public_key: bytes) -> bytes:
    return sha256(public_key, signing_public_key)[:16]


@lru_cache(MAX_CACHED_KEYS)
def _verifying(signing_public_key: bytes) -> Ed25519PublicKey:
    return Ed25519PublicKey.from_public_bytes(signing_public_key)


@dataclass(frozen=True, slots=True)
class PublicKeys:
    """The public keys of a device or an agent.

    Raises `wrong_key` for a key of small order: nobody owns such a key alone.
    """

    public_key: bytes
    signing_public_key: bytes

    def __post_init__(self) -> None:
        if len(self.public_key) != 32 or len(self.signing_public_key) != 32:
            raise E2eeError("malformed")
        if (
            _cleared(self.public_key) in X25519_SMALL_ORDER
            or _cleared(self.signing_public_key) in ED25519_SMALL_ORDER
        ):
            raise E2eeError("wrong_key")

    @property
    def key_id(self) -> bytes:
        """The name of the pair: computed, never read."""
        return _key_id(self.public_key, self.signing_public_key)

    def verify(self, text: bytes, signature: bytes) -> None:
        """Raises `bad_signature`. Small orders are refused before OpenSSL is asked."""
        if len(signature) != 64 or _cleared(signature[:32]) in ED25519_SMALL_ORDER:
            raise E2eeError("bad_signature")
        try:
            _verifying(self.signing_public_key).verify(signature, text)
        except (InvalidSignature, ValueError):
            raise E2eeError("bad_signature") from None


@dataclass(frozen=True, slots=True, eq=False)
class PrivateKeys:
    """The private keys of a device or an agent."""

    x25519: Secret
    ed25519_seed: Secret
    public: PublicKeys = field(init=False)
    key_id: bytes = field(init=False)
    exchange: X25519PrivateKey = field(init=False, repr=False)
    _signing: Ed25519PrivateKey = field(init=False, repr=False)

    def __post_init__(self) -> None:
        exchange = X25519PrivateKey.from_private_bytes(self.x25519.expose())
        signing = Ed25519PrivateKey.from_private_bytes(self.ed25519_seed.expose())
        public = PublicKeys(
            exchange.public_key().public_bytes_raw(),
            signing.public_key().public_bytes_raw(),
        )
        for name, value in (
            ("exchange", exchange),
            ("_signing", signing),
            ("public", public),
            ("key_id", public.key_id),
        ):
            object.__setattr__(self, name, value)

    @classmethod
    def random(cls) -> PrivateKeys:
        """Fresh keys for a device."""
        return cls(Secret.random(), Secret.random())

    def sign(self, text: bytes) -> bytes:
        """The Ed25519 signature: 64 bytes."""
        return self._signing.sign(text)


@dataclass(frozen=True, slots=True)
class AgentKey:
    """The one seed of an agent of one deployment."""

    seed: Secret

    @classmethod
    def random(cls) -> AgentKey:
        """A fresh seed."""
        return cls(Secret.random())

    def keys(self) -> PrivateKeys:
        """The private keys that follow from the seed."""
        def derive(name: str) -> Secret:
            return Secret(hkdf(self.seed.expose(), b"", label(name), 32))

        return PrivateKeys(derive("agent-x25519"), derive("agent-ed25519"))

    def to_text(self) -> str:
        """The written form: `bpk_` and base64url of the seed and its CRC-32."""
        seed = self.seed.expose()
        check = zlib.crc32(seed).to_bytes(4, "big")
        return "bpk_" + base64.urlsafe_b64encode(seed + check).decode().rstrip("=")

    @classmethod
    def parse(cls, text: str) -> AgentKey:
        """Raises `malformed`, for a slip of the pen too."""
        if len(text) != 52 or not text.startswith("bpk_"):
            raise E2eeError("malformed")
        try:
            data = base64.b64decode(text[4:].encode("ascii"), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            raise E2eeError("malformed") from None
        seed, check = data[:32], data[32:]
        if check != zlib.crc32(seed).to_bytes(4, "big"):
            raise E2eeError("malformed")
        return cls(Secret(seed))

    @classmethod
    def parse_all(cls, text: str) -> list[AgentKey]:
        """Several keys, newest first, separated by commas: old epochs were wrapped for old keys."""
        return [cls.parse(key.strip()) for key in text.split(",")]


def _introduction(owner: Principal, device_id: str | None, new: PublicKeys) -> bytes:
    """A new key, signed by an earlier one, says that the two are one owner's."""
    parts = (
        label("introduce"),
        owner.to_bytes(),
        prefixed(device_id or ""),
        new.public_key,
        new.signing_public_key,
    )
    return b"".join(parts)


def introduce(
    by: PrivateKeys, owner: Principal, device_id: str | None, new: PublicKeys
) -> bytes:
    """The signature (64 bytes) by which a device accepts a new key of its owner."""
    return by.sign(_introduction(owner, device_id, new))


def verify_introduction(
    by: PublicKeys, owner: Principal, device_id: str | None, new: PublicKeys, signature: bytes
) -> None:
    """Raises `bad_signature`. If `by` counts is for `Trust` to say."""
    by.verify(_introduction(owner, device_id, new), signature)
