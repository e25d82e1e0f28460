"""Key backups: private keys under a protection password."""

from __future__ import annotations

import os
import secrets
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from cryptography.hazmat.primitives.kdf.argon2 import Argon2id

from ._bytes import Reader, gcm_open, gcm_seal, hkdf, label, prefixed, u32
from .errors import E2eeError
from .keys import PrivateKeys, PublicKeys, Secret

MAX_BACKUP_KEYS: Final = 160
MIN_PASSWORD_CHARACTERS: Final = 12


@dataclass(frozen=True, slots=True)
class Costs:
    """The cost of guessing a password: memory in KiB, passes over it, lanes."""

    m: int = 65_536
    t: int = 3
    p: int = 1

    def __post_init__(self) -> None:
        if not (19_456 <= self.m <= 1_048_576 and 2 <= self.t <= 10 and 1 <= self.p <= 16):
            raise E2eeError("malformed")


@dataclass(frozen=True, slots=True)
class BackupKey:
    """The key-encryption key of a protection password."""

    kek: Secret
    salt: bytes
    costs: Costs

    @classmethod
    def random(cls, password: str) -> BackupKey:
        """For a new backup: salt and costs are this client's own, never the server's."""
        return cls.derive(password, os.urandom(32), Costs())

    @classmethod
    def derive(cls, password: str, salt: bytes, costs: Costs) -> BackupKey:
        """For a backup that exists."""
        if len(salt) != 32:
            raise E2eeError("malformed")
        kdf = Argon2id(
            salt=salt, length=32, iterations=costs.t, lanes=costs.p, memory_cost=costs.m
        )
        normal = unicodedata.normalize("NFKC", password).encode()
        return cls(Secret(kdf.derive(normal)), salt, costs)


@dataclass(frozen=True, slots=True)
class BackupOwner:
    """The device that a backup belongs to."""

    user: bytes
    device_id: str
    keys: PublicKeys


@dataclass(frozen=True, slots=True)
class Backup:
    """`backup_a` has the X25519 keys, `backup_b` the Ed25519 seeds."""

    backup_a: bytes
    backup_b: bytes


@dataclass(frozen=True, slots=True)
class Restored:
    """The device's keys, and X25519 keys of other devices by key id, for old wraps."""

    keys: PrivateKeys
    earlier: tuple[tuple[bytes, Secret], ...]


_Role = Literal["a", "b"]
_Held = Sequence[tuple[bytes, Secret]]


def seal(
    key: BackupKey,
    user: bytes,
    device_id: str,
    keys: PrivateKeys,
    earlier: _Held = (),
) -> Backup:
    """Encrypts a device's keys, and the earlier X25519 keys that it holds."""
    nonces = (os.urandom(12), os.urandom(12))
    return _seal_with(nonces, key, BackupOwner(user, device_id, keys.public), keys, earlier)


def _seal_with(
    nonces: tuple[bytes, bytes],
    key: BackupKey,
    owner: BackupOwner,
    keys: PrivateKeys,
    earlier: _Held,
) -> Backup:
    """For vectors: a nonce that is used twice gives the keys away."""
    held = [(keys.key_id, keys.x25519), *earlier]
    signing = [(keys.key_id, keys.ed25519_seed)]
    return Backup(
        _half(key, owner, "a", held, nonces[0]), _half(key, owner, "b", signing, nonces[1])
    )


def open(key: BackupKey, owner: BackupOwner, backup: Backup) -> Restored:
    """Raises `wrong_key`, whatever is wrong: the password, the owner, or the backup itself."""
    try:
        return _opened(key, owner, backup)
    except E2eeError:
        raise E2eeError("wrong_key") from None


def _opened(key: BackupKey, owner: BackupOwner, backup: Backup) -> Restored:
    (key_id, x25519), *earlier = _opened_half(key, owner, "a", backup.backup_a)
    (signing_id, seed), *_ = _opened_half(key, owner, "b", backup.backup_b)
    keys = PrivateKeys(x25519, seed)
    if keys.public != owner.keys or not key_id == signing_id == keys.key_id:
        raise E2eeError("wrong_key")
    return Restored(keys, tuple(earlier))


def _half(key: BackupKey, owner: BackupOwner, role: _Role, keys: _Held, nonce: bytes) -> bytes:
    if len(keys) > MAX_BACKUP_KEYS:
        raise E2eeError("malformed")
    held = b"".join(key_id + secret.expose() for key_id, secret in keys)
    plaintext = bytes([len(keys)]) + held
    aad = _aad(key, owner, role)
    return b"\1" + nonce + gcm_seal(_role_key(key, role), nonce, aad, plaintext)


def _opened_half(
    key: BackupKey, owner: BackupOwner, role: _Role, half: bytes
) -> list[tuple[bytes, Secret]]:
    at = Reader(half)
    if at.number(1) != 1:
        raise E2eeError("unknown_version")
    nonce = at.take(12)
    plaintext = gcm_open(_role_key(key, role), nonce, _aad(key, owner, role), at.rest())
    at = Reader(plaintext)
    count = at.number(1)
    if not 1 <= count <= MAX_BACKUP_KEYS or len(at.rest()) != 48 * count:
        raise E2eeError("malformed")
    return [(at.take(16), Secret(at.take(32))) for _ in range(count)]


def _role_key(key: BackupKey, role: _Role) -> bytes:
    return hkdf(key.kek.expose(), b"", label("backup") + role.encode(), 32)


def _aad(key: BackupKey, owner: BackupOwner, role: _Role) -> bytes:
    costs = u32(key.costs.m) + u32(key.costs.t) + u32(key.costs.p)
    parts = (
        label("backup-aad"),
        role.encode(),
        owner.user,
        prefixed(owner.device_id),
        owner.keys.public_key,
        owner.keys.signing_public_key,
        costs,
    )
    return b"".join(parts)


def generate_password() -> str:
    """A protection password that nobody guesses: 24 characters of base32, 120 bits."""
    return "".join(secrets.choice("abcdefghijklmnopqrstuvwxyz234567") for _ in range(24))


def check_password(chosen: str, account_password: str | None = None) -> None:
    """Raises `malformed` for fewer than 12 characters, and for the account's own password.

    The server sees the account's password at each sign-in.
    """
    normal = unicodedata.normalize("NFKC", chosen)
    account = unicodedata.normalize("NFKC", account_password or "")
    if len(normal) < MIN_PASSWORD_CHARACTERS or normal == account:
        raise E2eeError("malformed")
