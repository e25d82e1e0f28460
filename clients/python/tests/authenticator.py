"""An authenticator in software: a discoverable key of the kind ES256, without attestation.

It signs everything, also what a browser would refuse.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Mapping
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256

PRESENT, VERIFIED, WITH_KEY = 0x01, 0x04, 0x40
ES256 = -7


class SoftAuthenticator:
    """One passkey, and the page at `origin` that asks for it."""

    def __init__(self, origin: str) -> None:
        self._origin = origin
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._id = os.urandom(16)
        self._user_handle = ""
        self.counter = 0
        """The signatures so far. A copy of the key has a lower one."""

    async def create(self, public_key: Mapping[str, Any]) -> dict[str, Any]:
        assert ES256 in [each["alg"] for each in public_key["pubKeyCredParams"]]
        self._user_handle = public_key["user"]["id"]
        data = self._data(public_key["rp"]["id"], PRESENT | VERIFIED | WITH_KEY)
        data += bytes(16) + len(self._id).to_bytes(2, "big") + self._id + self._cose()
        # {"fmt": "none", "attStmt": {}, "authData": data} in CBOR.
        made = b"\xa3\x63fmt\x64none\x67attStmt\xa0\x68authData\x59"
        return self._credential(
            clientDataJSON=self._client_data("webauthn.create", public_key),
            attestationObject=made + len(data).to_bytes(2, "big") + data,
        )

    async def get(self, public_key: Mapping[str, Any]) -> dict[str, Any]:
        self.counter += 1
        data = self._data(public_key["rpId"], PRESENT | VERIFIED)
        told = self._client_data("webauthn.get", public_key)
        signed = data + hashlib.sha256(told).digest()
        credential = self._credential(
            clientDataJSON=told,
            authenticatorData=data,
            signature=self._key.sign(signed, ec.ECDSA(SHA256())),
        )
        credential["response"]["userHandle"] = self._user_handle
        return credential

    def _client_data(self, kind: str, public_key: Mapping[str, Any]) -> bytes:
        told = {"type": kind, "challenge": public_key["challenge"], "origin": self._origin}
        return json.dumps(told).encode()

    def _data(self, rp_id: str, flags: int) -> bytes:
        return (
            hashlib.sha256(rp_id.encode()).digest() + bytes([flags]) + self.counter.to_bytes(4, "big")
        )

    def _cose(self) -> bytes:
        """{1: EC2, 3: ES256, -1: P-256, -2: x, -3: y} in CBOR."""
        public = self._key.public_key().public_numbers()
        x, y = (number.to_bytes(32, "big") for number in (public.x, public.y))
        return b"\xa5\x01\x02\x03\x26\x20\x01\x21\x58\x20" + x + b"\x22\x58\x20" + y

    def _credential(self, **response: bytes) -> dict[str, Any]:
        id = _text(self._id)
        told = {name: _text(value) for name, value in response.items()}
        return {
            "id": id,
            "rawId": id,
            "type": "public-key",
            "response": told,
            "clientExtensionResults": {},
        }


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
