"""Search tokens of messages that are sent, and of words that are looked for."""

from __future__ import annotations

from collections.abc import Sequence

from ..e2ee import search
from ..e2ee.envelope import Header
from .content import ContentView
from .payload import envelope_of
from .session import Session
from .types import JsonObject, is_sealed

SEARCHED_EPOCHS = 8
"""Each epoch is a search of its own, and the service allows ten in a minute."""


async def message_tokens(
    session: Session, conversation_id: str, content: JsonObject, payload: JsonObject
) -> list[str]:
    """The tokens of a content's words, under the secret that its payload is sealed with."""
    if not is_sealed(payload):
        return []
    header = Header.parse(envelope_of(payload))
    key = (await session.load(conversation_id)).room.epoch_key(header.epoch, header.sid)
    words = search.words(ContentView.of(content).text)[: search.MAX_MESSAGE_TOKENS]
    return (key and search.tokens(key, words)) or []


async def epoch_tokens(
    session: Session, conversation_id: str, words: Sequence[str]
) -> list[list[str]]:
    """The tokens of words under each secret of the newest epochs that this member holds.

    The newest stand first.
    """
    entry = await session.load(conversation_id)
    # A client that follows no events has not heard of the newest epoch.
    await session.read_wraps(conversation_id, entry)
    newest = entry.room.server.epoch
    found = []
    for epoch in range(newest, max(0, newest - SEARCHED_EPOCHS), -1):
        if not entry.room.epoch_keys(epoch):
            await session.read_wraps(conversation_id, entry, epoch)
        for key in entry.room.epoch_keys(epoch):
            tokens = search.tokens(key, words)
            if tokens:
                found.append(tokens)
    return found
