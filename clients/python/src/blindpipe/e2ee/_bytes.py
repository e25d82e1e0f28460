"""Joining and reading bytes, and the two primitives that everything uses."""

import binascii
import hashlib
from functools import cache

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from .errors import E2eeError

TAG_BYTES = 16


@cache
def label(name: str) -> bytes:
    """The prefix that separates one use of a key from every other."""
    return b"blindpipe/1/" + name.encode() + b"\0"


def u32(number: int) -> bytes:
    return fixed(number, 4)


def u64(number: int) -> bytes:
    return fixed(number, 8)


def fixed(number: int, size: int) -> bytes:
    """A number in `size` bytes; what does not fit is `malformed`."""
    try:
        return number.to_bytes(size, "big")
    except OverflowError:
        raise E2eeError("malformed") from None


def prefixed(data: bytes | str) -> bytes:
    """A length of two bytes and the bytes."""
    if isinstance(data, str):
        try:
            data = data.encode()
        except UnicodeEncodeError:
            raise E2eeError("malformed") from None
    return fixed(len(data), 2) + data


def sha256(*parts: bytes) -> bytes:
    return hashlib.sha256(b"".join(parts)).digest()


def hkdf(ikm: bytes, salt: bytes, info: bytes, length: int) -> bytes:
    """HKDF with SHA-256; an empty `salt` is none."""
    return HKDF(algorithm=SHA256(), length=length, salt=salt, info=info).derive(ikm)


def gcm_seal(key: bytes, nonce: bytes, aad: bytes, plaintext: bytes) -> bytes:
    return AESGCM(key).encrypt(nonce, plaintext, aad)


def gcm_open(key: bytes, nonce: bytes, aad: bytes, ciphertext: bytes) -> bytes:
    try:
        return AESGCM(key).decrypt(nonce, ciphertext, aad)
    except InvalidTag:
        raise E2eeError("bad_ciphertext") from None


def from_base64(text: str) -> bytes:
    """Standard base64, padded; what has another spelling is refused."""
    try:
        data = binascii.a2b_base64(text)
    except ValueError:
        raise E2eeError("malformed") from None
    if to_base64(data) != text:
        raise E2eeError("malformed")
    return data


def to_base64(data: bytes) -> str:
    return binascii.b2a_base64(data, newline=False).decode()


class Reader:
    """Takes fields from the front of some bytes; a missing field is `malformed`."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, count: int) -> bytes:
        taken = self._data[self._at : self._at + count]
        if len(taken) != count:
            raise E2eeError("malformed")
        self._at += count
        return taken

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def rest(self) -> bytes:
        return self._data[self._at :]
