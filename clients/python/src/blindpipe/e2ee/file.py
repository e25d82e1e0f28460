"""Files: encrypted in chunks, each of which knows its place and whether it is the last."""

import os
from dataclasses import dataclass, field
from typing import Final

from ._bytes import TAG_BYTES, Reader, gcm_open, gcm_seal, hkdf, label, sha256
from .errors import E2eeError
from .keys import Secret

CHUNK_BYTES: Final = 65_536
_MAGIC = b"BPF1"
_SALT_BYTES = 16


@dataclass(frozen=True, slots=True)
class SealedFile:
    """An encrypted file, with the key and the hash that the message carries."""

    data: bytes = field(repr=False)
    key: Secret
    sha256: bytes


def seal(content: bytes) -> SealedFile:
    """Encrypts under a fresh key and salt."""
    return _seal_with(content, Secret.random(), os.urandom(_SALT_BYTES))


def _seal_with(content: bytes, key: Secret, salt: bytes) -> SealedFile:
    """For vectors: a key and a salt that are used twice give the content away."""
    file_key = hkdf(key.expose(), salt, label("file"), 32)
    last = max(len(content) - 1, 0) // CHUNK_BYTES
    chunks = [
        gcm_seal(
            file_key,
            _nonce(index, index == last),
            b"",
            content[index * CHUNK_BYTES : (index + 1) * CHUNK_BYTES],
        )
        for index in range(last + 1)
    ]
    data = b"".join([_MAGIC, salt, *chunks])
    return SealedFile(data, key, sha256(data))


def open(file: bytes, key: Secret, sha256_told: bytes) -> bytes:
    """Decrypts a file whose hash the message told."""
    if sha256(file) != sha256_told:
        raise E2eeError("bad_ciphertext")
    at = Reader(file)
    if at.take(len(_MAGIC)) != _MAGIC:
        raise E2eeError("unknown_version")
    file_key = hkdf(key.expose(), at.take(_SALT_BYTES), label("file"), 32)
    size = CHUNK_BYTES + TAG_BYTES
    chunks = at.rest()
    last = max(len(chunks) - 1, 0) // size
    content = []
    for index in range(last + 1):
        sealed = chunks[index * size : (index + 1) * size]
        chunk = gcm_open(file_key, _nonce(index, index == last), b"", sealed)
        # Only an empty file has an empty chunk.
        if not chunk and index > 0:
            raise E2eeError("malformed")
        content.append(chunk)
    return b"".join(content)


def _nonce(index: int, last: bool) -> bytes:
    """The number of the chunk in 11 bytes, and 1 if it is the last."""
    return index.to_bytes(11, "big") + bytes([last])
