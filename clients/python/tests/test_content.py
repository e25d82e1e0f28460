"""Contents are viewed, and made a timeline, as `docs/content.md` and the vectors say."""

from __future__ import annotations

from typing import Any

import pytest
from blindpipe.client import ContentView, ReceivedMessage, TimelineItem, timeline
from blindpipe.core.opened import OpenedMessage, Sender
from blindpipe.core.types import JsonObject, Message
from blindpipe.e2ee import E2eeError, ids
from support import read

VECTORS = read("content_kinds.json")


def _received(case: dict[str, Any]) -> ReceivedMessage:
    sender = Sender(
        case["sender"]["type"], case["sender"]["id"], None, True, False, False, member=True
    )
    message: Message = {
        "message_id": case["message_id"],
        "conversation_id": "0192f0c1-0000-7000-8000-000000000001",
        "seq": case["seq"],
        "sender": case["sender"],
        "payload": None if case["state"] == "deleted" else {"type": "encrypted"},
        "hop": 0,
        "created_at": "2026-03-01T12:00:00.000Z",
    }
    if case["content"] is None:
        return ReceivedMessage(message, None, E2eeError("clear"))
    encrypted = case["re"] is not None
    opened = OpenedMessage(case["content"], "", encrypted, sender, None, 0, case["re"], False, ())
    return ReceivedMessage(message, opened, None)


def _told(item: TimelineItem) -> JsonObject:
    return {
        "message_id": item.received.message["message_id"],
        "state": item.state,
        "content": item.content,
        "edits": item.edits,
        "reactions": [
            {
                "emoji": each.emoji,
                "senders": [
                    {"type": "user" if who.is_user else "agent", "id": ids.principal_id(who)}
                    for who in each.senders
                ],
            }
            for each in item.reactions
        ],
    }


def test_contents_are_viewed_as_the_vectors_say() -> None:
    assert len(VECTORS["kinds"]) > 60
    for case in VECTORS["kinds"]:
        view = ContentView.of(case["content"])
        told = {"kind": view.kind, "text": view.text, "markdown": view.markdown}
        assert {"content": case["content"], **told} == case


@pytest.mark.parametrize("case", VECTORS["folds"], ids=lambda case: str(case["name"]))
def test_timelines_are_as_the_vectors_say_in_any_order(case: dict[str, Any]) -> None:
    messages = [_received(each) for each in case["messages"]]
    refs = [_received(each) for each in case["refs"]]
    for _ in range(2):
        assert [_told(item) for item in timeline(messages, refs)] == case["shown"]
        messages.reverse()
        refs.reverse()
