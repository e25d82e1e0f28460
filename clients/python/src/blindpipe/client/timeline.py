"""From messages to what is shown: edits, reactions, and what was taken back."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from ..core.content import Change, ContentView
from ..core.types import JsonObject
from ..e2ee import Principal, from_base64, ids
from .conversation import ReceivedMessage

TimelineState = Literal["shown", "deleted", "undecryptable"]


@dataclass(frozen=True, slots=True)
class Reactions:
    """The people and agents with one emoji, the earliest first."""

    emoji: str
    senders: list[Principal]


@dataclass(slots=True)
class TimelineItem:
    """A message as it is shown."""

    received: ReceivedMessage
    """The message, as it was sent."""
    state: TimelineState
    """`deleted`: it was taken back, or its payload is gone."""
    content: JsonObject | None = field(repr=False)
    """The content of its last edit; its own without any. None unless it is shown."""
    edits: int = 0
    """The number of its edits."""
    _standing: list[tuple[str, Principal]] = field(default_factory=list, repr=False)

    @property
    def reactions(self) -> list[Reactions]:
        """Its reactions, the earliest emoji first."""
        by_emoji: dict[str, list[Principal]] = {}
        for emoji, sender in self._standing:
            by_emoji.setdefault(emoji, []).append(sender)
        return [Reactions(emoji, senders) for emoji, senders in by_emoji.items()]

    def _apply(self, change: Change, sender: Principal) -> None:
        opened = self.received.opened
        if self.content is None or opened is None:
            return
        if change.target.re != (from_base64(opened.re) if opened.re else None):
            return
        is_author = sender == _sender(self.received)
        match change.kind:
            case "edit" if is_author:
                if ContentView.of(change.content).kind == ContentView.of(self.content).kind:
                    self.content, self.edits = change.content, self.edits + 1
            case "delete" if is_author:
                self.state, self.content, self.edits = "deleted", None, 0
                self._standing.clear()
            case "reaction":
                reaction = (change.emoji, sender)
                if reaction in self._standing:
                    self._standing.remove(reaction)
                if not change.is_removed:
                    self._standing.append(reaction)


def timeline(
    messages: Iterable[ReceivedMessage], refs: Iterable[ReceivedMessage] = ()
) -> list[TimelineItem]:
    """What is shown of messages and of those that refer to them, by rising `seq`.

    Their order plays no part. A change of a message that is not there shows nothing.
    """
    page = {each.message["seq"]: each for each in messages}
    known = {each.message["seq"]: each for each in refs} | page
    items = [_item(page[seq]) for seq in sorted(page) if _change(page[seq]) is None]
    by_id = {ids.parse(item.received.message["message_id"]): item for item in items}
    for seq in sorted(known):
        change = _change(known[seq])
        if change is not None and change.target.message_id in by_id:
            by_id[change.target.message_id]._apply(change, _sender(known[seq]))
    return items


def _change(received: ReceivedMessage) -> Change | None:
    return Change.read(received.content) if received.opened else None


def _sender(received: ReceivedMessage) -> Principal:
    told = received.message["sender"]
    return ids.principal(told["type"], told["id"])


def _item(received: ReceivedMessage) -> TimelineItem:
    if received.message["payload"] is None:
        return TimelineItem(received, "deleted", None)
    if received.opened is None:
        return TimelineItem(received, "undecryptable", None)
    return TimelineItem(received, "shown", received.opened.content)
