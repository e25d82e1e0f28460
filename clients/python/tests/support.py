"""Reads the vectors, whose bytes are hex, and makes entries of stores."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from blindpipe.e2ee import E2eeError, EpochKey, Principal, PrivateKeys, PublicKeys, Secret
from blindpipe.e2ee.envelope import Delta, Message, Place, Request, Response
from blindpipe.e2ee.pins import StoredPrincipal
from blindpipe.stores.pin_store import StoredTrust

VECTORS = Path(__file__).parents[2] / "vectors"
Json = dict[str, Any]


def read(name: str) -> Any:
    return json.loads((VECTORS / name).read_text())


def hexed(case: Json, field: str) -> bytes:
    return bytes.fromhex(case[field])


def secret(case: Json, field: str) -> Secret:
    return Secret(hexed(case, field))


def principal(case: Json, field: str) -> Principal:
    return Principal.from_bytes(hexed(case, field))


def private(case: Json) -> PrivateKeys:
    return PrivateKeys(secret(case, "x25519_private"), secret(case, "ed25519_seed"))


def public(case: Json) -> PublicKeys:
    return PublicKeys(hexed(case, "public_key"), hexed(case, "signing_public_key"))


def epoch_key(case: Json, conversation: bytes, epoch: int) -> EpochKey:
    """`{secret}`, or `{lane_agent, lane_secret, sid}`."""
    if case.get("secret"):
        return EpochKey.new(conversation, epoch, secret(case, "secret"))
    lane = secret(case, "lane_secret")
    return EpochKey(conversation, epoch, hexed(case, "sid"), lane, hexed(case, "lane_agent"))


def place(case: Json) -> Place:
    match case["kind"]:
        case 1:
            reply = case["in_reply_to"]
            return Message(hexed(case, "client_message_id"), bytes.fromhex(reply) if reply else None)
        case 2:
            return Delta(case["stream_id"], case["n"])
        case 3:
            return Request(
                hexed(case, "asked"),
                case["request_id"],
                case["tool"],
                case["scope"],
                case["device_id"],
            )
        case 4:
            digest = hexed(case, "digest")
            return Response(digest, case["request_id"], case["status"], case["reason"])
    raise AssertionError(case)


def refused(reason: str) -> Any:
    return pytest.raises(E2eeError, match=f"^{reason}$")


def stored_trust(*names: str, **marks: int) -> StoredTrust:
    """The input of a store: pins of these names without a key, and marks with these epochs."""
    entry: StoredPrincipal = {"speaks": True, "linked": None, "keys": []}
    epochs = {id: {"epoch": epoch, "time": 7} for id, epoch in marks.items()}
    return {"pins": {"principals": dict.fromkeys(names, entry)}, "marks": epochs}  # type: ignore[typeddict-item]
