"""Messages in events, and envelopes in payloads."""

from __future__ import annotations

from typing import cast

from ..e2ee import E2eeError, from_base64, ids, to_base64
from .types import Event, JsonObject, Message, is_sealed


def message_of(event: Event) -> Message:
    """The message that an event brings. Raises `malformed` if it is of another conversation."""
    message = cast(Message, event["data"])
    told, own = event.get("conversation_id"), message["conversation_id"]
    # Ids have several spellings, so their bytes decide.
    if told != own and (told is None or ids.parse(told) != ids.parse(own)):
        raise E2eeError("malformed")
    return message


def payload_of(envelope: bytes) -> JsonObject:
    """The payload that carries an envelope."""
    return {"type": "encrypted", "v": 1, "ciphertext": to_base64(envelope)}


def envelope_of(payload: JsonObject | None) -> bytes:
    """The envelope of a payload. Raises `clear`, `unknown_version` or `malformed`."""
    if payload is None or not is_sealed(payload):
        raise E2eeError("clear")
    if payload.get("v") != 1:
        raise E2eeError("unknown_version")
    ciphertext = payload.get("ciphertext")
    if not isinstance(ciphertext, str):
        raise E2eeError("malformed")
    return from_base64(ciphertext)
