"""The events that change keys, and the lines in which events wait."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ..e2ee import Principal, ids
from .types import Event

_KEY_EVENTS: Final = {
    "key.device_added": "user_id",
    "key.device_removed": "user_id",
    "agent.key_registered": "agent_id",
}
"""The events that change keys, and the field that says whose."""


def line_of(event: Mapping[str, Any]) -> str:
    """The line in which an event waits for those before it.

    That is its conversation, or the principal whose keys it changes. All others share a line.
    """
    data = event.get("data")
    told = data if isinstance(data, dict) else {}
    whose = told.get(_KEY_EVENTS.get(str(event.get("event")), ""))
    return str(event.get("conversation_id") or whose or "")


def whose_keys(event: Event) -> Principal | None:
    """The principal whose keys an event has changed."""
    name = _KEY_EVENTS.get(event["event"])
    if name is None:
        return None
    return ids.principal("agent" if name == "agent_id" else "user", event["data"][name])
