"""Shapes of the service that the client reads; a test holds them to the OpenAPI document."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal, NotRequired, TypedDict

JsonObject = dict[str, Any]

Kind = Literal["user", "agent"]


class SenderInfo(TypedDict):
    """The sender of a message, by the server's word."""

    type: Kind
    id: str
    device_id: NotRequired[str | None]


class Message(TypedDict):
    """A message as the server stores it."""

    message_id: str
    conversation_id: str
    seq: int
    sender: SenderInfo
    payload: JsonObject | None
    hop: int
    created_at: str
    client_message_id: NotRequired[str | None]
    in_reply_to: NotRequired[str | None]
    recipients: NotRequired[list[str] | None]
    refs: NotRequired[list[str] | None]
    purged: NotRequired[bool]
    deleted_at: NotRequired[str | None]
    deleted_by: NotRequired[str | None]


class LiveStream(TypedDict):
    """A stream that an agent is writing. `n` is the number of the next piece."""

    stream_id: str
    agent_id: str
    in_reply_to: NotRequired[str]
    generation: int
    n: int
    started_at: str


class Sent(TypedDict):
    """The answer to a send. `duplicate`: an earlier try stored it."""

    message_id: str
    conversation_id: str
    seq: int
    created_at: str
    client_message_id: str | None
    duplicate: bool


class Member(TypedDict):
    """A member of a conversation."""

    principal_type: Kind
    principal_id: str
    display_name: str
    role: str
    joined_at: str
    visibility: NotRequired[Literal["all", "addressed"] | None]


class ConversationInfo(TypedDict):
    """A conversation as the server shows it."""

    conversation_id: str
    type: Literal["direct", "agent", "group"]
    title: str | None
    created_by: str
    created_at: str
    encryption: str
    epoch: int
    rotation_required: bool
    member_count: int
    last_message_id: str | None
    last_activity_at: str
    members: NotRequired[list[Member] | None]


class Event(TypedDict):
    """A durable event, the same on every transport."""

    event_id: str
    event: str
    cursor: str
    seq: int
    created_at: str
    data: JsonObject
    conversation_id: NotRequired[str]


class ToolCall(TypedDict):
    """A tool call as a device gets it."""

    request_id: str
    agent_id: str
    user_id: str
    conversation_id: str
    tool: str
    scope: str
    sensitivity: str
    device_id: str | None
    prompt_required: bool
    created_at: str
    expires_at: str
    payload: JsonObject


class ToolCallState(TypedDict):
    """A tool call as its agent sees it."""

    request_id: str
    conversation_id: str
    user_id: str
    status: str
    sensitivity: str
    prompt_required: bool
    expires_at: str
    reason: NotRequired[str | None]
    payload: NotRequired[JsonObject | None]


class SignedIn(TypedDict):
    """The answer to a sign-in."""

    user_id: str
    access_token: str
    expires_in_seconds: int
    device_id: str
    is_new_device: bool
    key_backup: JsonObject


class Device(TypedDict):
    """A person's device."""

    device_id: str
    display_name: str | None
    platform: str | None
    created_at: str
    last_seen_at: str
    current: bool
    has_keys: bool
    online: bool
    session_id: str | None


class SessionInfo(TypedDict):
    """A sign-in of a person's device."""

    session_id: str
    device_id: str
    display_name: str | None
    platform: str | None
    created_at: str
    revoked_at: str | None
    current: bool
    changes: int


class SessionChange(TypedDict):
    """Something that a session has added, and that can be undone."""

    kind: Literal["agent", "token", "webhook", "relation", "instance", "passkey", "share"]
    id: str
    name: str
    at: str


class Grant(TypedDict):
    """Scopes that a person allows an agent, or is asked to allow."""

    grant_id: str
    agent_id: str
    user_id: str
    conversation_id: str
    status: str
    requested: list[str]
    scopes: list[str]
    reason: str | None
    ttl_seconds: int | None
    created_at: str
    expires_at: str | None
    decided_at: str | None
    revoked_at: str | None


def milliseconds(timestamp: str) -> int:
    """A timestamp of the service in Unix milliseconds."""
    return round(datetime.fromisoformat(timestamp).timestamp() * 1000)


def is_deleted(message: Message) -> bool:
    """Whether the service says that it has deleted or purged the payload."""
    is_said = message.get("deleted_at") is not None or message.get("purged") is True
    return message["payload"] is None and is_said


def is_sealed(payload: JsonObject | None) -> bool:
    """Whether a payload says that it is encrypted."""
    return (payload or {}).get("type") == "encrypted"
