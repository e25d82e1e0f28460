"""The hash of a list of keys, for the log of keys and the view of an envelope."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ._bytes import fixed, label, prefixed, sha256, u32
from .keys import Principal, PublicKeys


@dataclass(frozen=True, slots=True)
class ListedKey:
    """A key that is not retired, as its list shows it."""

    device_id: str | None
    keys: PublicKeys
    schemes: Sequence[str] = ()

    def entry(self) -> bytes:
        """The bytes of this key in the hash of its list."""
        schemes = prefixed(",".join(sorted(self.schemes, key=str.encode)))
        keys = self.keys.public_key + self.keys.signing_public_key
        return prefixed(self.device_id or "") + keys + schemes


def keys_hash(before: bytes, keys: Sequence[ListedKey]) -> bytes:
    """Chains the list after the list before it (zeros for the first)."""
    entries = sorted(key.entry() for key in keys)
    return sha256(label("log-keys"), before, fixed(len(entries), 2), *entries)


def log_label(owner: Principal) -> bytes:
    """The name of a principal in the log."""
    return sha256(label("log-label"), owner.to_bytes())


def leaf(owner: Principal, list_version: int, hash: bytes) -> bytes:
    """The leaf of a list in the log."""
    return b"\1" + log_label(owner) + u32(list_version) + hash


def leaf_hash(leaf: bytes) -> bytes:
    """The hash of a leaf, as in RFC 6962."""
    return sha256(b"\0", leaf)


def view(list_version: int, hash: bytes) -> bytes:
    """A list in the view of an envelope."""
    return u32(list_version) + hash[:16]
