"""Sends of an agent: exactly one message per id, whatever dies in between."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from ..api_errors import IdempotencyConflict
from ..core.large import fitting_content
from ..core.opened import OpenedMessage
from ..core.session import Session
from ..core.types import JsonObject, Message, Sent, is_sealed, milliseconds
from ..e2ee import E2eeError, ids
from ..e2ee.envelope import Message as MessagePlace
from ..errors import IdConflict, KeyUnavailable, UsageError
from ..transport.clock import now_ms
from ..transport.http import Call, Http

SAFE_REPEAT_MS: Final = 20 * 3_600_000
"""The server remembers ids for 24 hours; this leaves room for clocks and queues."""
HISTORY_PAGE_MESSAGES: Final = 100
MAX_HISTORY_PAGES: Final = 20
"""A question is looked for in so many pages."""
CLOCK_MARGIN_MS: Final = 5 * 60_000
"""A reply to an event is not older than the event, but for this."""


# Not frozen, since one is made for each event: to make a frozen one takes twice as long.
@dataclass(slots=True)
class Answered:
    """The message that a send answers; a search for an earlier run begins there."""

    message: Message
    opened: OpenedMessage


@dataclass(frozen=True, slots=True)
class Draft:
    """A message before it is sealed."""

    conversation_id: str
    content: JsonObject
    client_message_id: str
    answered: Answered | None
    caused_at: int
    """The time of the event that caused this, in Unix milliseconds."""
    to: Sequence[str] = ()
    """Ids of `addressed` agents that can read this."""
    refs: Sequence[str] = ()
    """The messages that a change is about. It is no reply to what is answered."""

    @property
    def replied_to(self) -> Answered | None:
        """The message that this is a reply to."""
        return None if self.refs else self.answered


class Outbox:
    """Sends, and finds what an earlier run has sent."""

    def __init__(self, http: Http, agent_id: str, session: Session, allows_clear: bool) -> None:
        self._http = http
        self._agent_id = agent_id
        self._session = session
        self._allows_clear = allows_clear

    def _path(self, conversation_id: str) -> str:
        return f"/agents/{self._agent_id}/conversations/{conversation_id}/messages"

    async def payload(self, draft: Draft) -> JsonObject:
        """The payload of a draft, sealed where the conversation is encrypted."""
        if await self.goes_clear(draft):
            return draft.content
        answered, replied_to = draft.answered, draft.replied_to
        place = MessagePlace(
            ids.parse(draft.client_message_id),
            ids.parse(replied_to.message["message_id"]) if replied_to else None,
        )
        base = f"/agents/{self._agent_id}/files"
        content = await fitting_content(self._http, base, draft.conversation_id, draft.content)
        if replied_to is not None and replied_to.opened.re is not None:
            content = {**content, "re": replied_to.opened.re}
        return await self._session.seal_payload(
            draft.conversation_id,
            place,
            content,
            answering=answered.opened.epoch if answered else None,
            addressed=draft.to,
        )

    async def goes_clear(self, draft: Draft) -> bool:
        """Whether a draft is not sealed. Raises `KeyUnavailable` where it can be neither."""
        session, answered = self._session, draft.answered
        if await session.is_encrypted(draft.conversation_id):
            if not session.has_keys:
                raise KeyUnavailable("the conversation is encrypted, and this agent has no key")
            return False
        answers_clear = answered is not None and not answered.opened.encrypted
        if self._allows_clear and (answers_clear or not session.has_keys):
            return True
        raise KeyUnavailable()

    def is_old(self, draft: Draft) -> bool:
        """Whether the server may have forgotten what an earlier run sent."""
        return now_ms() - draft.caused_at >= SAFE_REPEAT_MS

    async def send(self, draft: Draft) -> Sent:
        """Sends, unless an earlier run did."""
        if self.is_old(draft):
            # The server has forgotten the id, so the history must say.
            earlier = await self.find_draft(draft)
            if earlier is not None:
                return earlier
        return await self.send_payload(draft, await self.payload(draft))

    async def send_payload(self, draft: Draft, payload: JsonObject) -> Sent:
        """Sends bytes that are sealed already; they are the same at every try."""
        body: JsonObject = {"payload": payload, "client_message_id": draft.client_message_id}
        if draft.replied_to is not None:
            body["in_reply_to"] = draft.replied_to.message["message_id"]
        if draft.to:
            body["recipients"] = list(draft.to)
        if draft.refs:
            body["refs"] = list(draft.refs)
        call = Call("POST", self._path(draft.conversation_id), body=body, repeatable=True)
        try:
            sent: Sent = await self._http.data(call)
        except IdempotencyConflict as conflict:
            return await self.earlier_run(draft, conflict)
        return sent

    async def earlier_run(self, draft: Draft, conflict: IdempotencyConflict) -> Sent:
        """An earlier run sent it: a sealed repeat always differs, and so may a model's answer."""
        told = conflict.params
        if told.get("message_id") and told.get("payload"):
            answered = draft.replied_to
            message: Message = {
                "message_id": told["message_id"],
                "conversation_id": draft.conversation_id,
                "seq": int(told["seq"]),
                "sender": {"type": "agent", "id": self._agent_id},
                "payload": told["payload"],
                "hop": 0,
                "created_at": _timestamp(draft.caused_at),
                "client_message_id": draft.client_message_id,
                "in_reply_to": answered.message["message_id"] if answered else None,
            }
            if await self._is_own(message):
                return _sent_of(message)
        else:
            found = await self.find_draft(draft)
            if found is not None:
                return found
        raise IdConflict()

    async def find_draft(self, draft: Draft) -> Sent | None:
        """What an earlier run has sent of this draft."""
        id, answered = draft.client_message_id, draft.answered
        return await self.find(draft.conversation_id, id, answered, draft.caused_at)

    async def find(
        self, conversation_id: str, client_message_id: str, answered: Answered | None, since: int
    ) -> Sent | None:
        """The agent's message with this id, after the message that it answers, or after `since`.

        The search ends where the message cannot be, and nowhere before: else it were sent twice.
        """
        wanted = ids.parse(client_message_id)
        after = answered.message["message_id"] if answered else None
        direction = "forward" if after else "backward"
        async for message in self._history(conversation_id, direction, after, None):
            is_before = milliseconds(message["created_at"]) < since - CLOCK_MARGIN_MS
            if after is None and is_before:
                return None
            id = message.get("client_message_id")
            if id and ids.parse(id) == wanted and await self._is_own(message):
                return _sent_of(message)
        return None

    async def question(
        self, conversation_id: str, message_id: str, before: str
    ) -> OpenedMessage | None:
        """The agent's own question, opened; None if the history does not have it."""
        wanted = ids.parse(message_id)
        async for message in self._history(
            conversation_id, "backward", before, MAX_HISTORY_PAGES
        ):
            if ids.parse(message["message_id"]) == wanted:
                return await self.open_own(message)
        return None

    async def _history(
        self, conversation_id: str, direction: str, cursor: str | None, pages: int | None
    ) -> AsyncIterator[Message]:
        for _ in itertools.count() if pages is None else range(pages):
            query = {"direction": direction, "cursor": cursor, "limit": HISTORY_PAGE_MESSAGES}
            answer = await self._http.call(Call("GET", self._path(conversation_id), query))
            for message in answer.data:
                yield message
            cursor = answer.next_cursor
            if not cursor:
                return

    async def own(self, sent: Sent) -> Answered:
        """A message that this agent has sent, opened. Raises `UsageError` if it is not there."""
        wanted = ids.parse(sent["message_id"])
        async for message in self._history(sent["conversation_id"], "backward", None, None):
            if message["seq"] < sent["seq"]:
                break
            if ids.parse(message["message_id"]) == wanted and message["payload"] is not None:
                opened = await self.open_own(message)
                if opened is not None:
                    return Answered(message, opened)
        raise UsageError("this agent has sent no such message")

    async def delete(self, sent: Sent) -> None:
        """Has the service forget the payload of a message of this agent."""
        path = f"{self._path(sent['conversation_id'])}/{sent['message_id']}"
        await self._http.data(Call("DELETE", path, repeatable=True))

    async def open_own(self, message: Message) -> OpenedMessage | None:
        """A message, opened if it is this agent's own."""
        if not await self._is_own(message):
            return None
        if not is_sealed(message["payload"]):
            return self._session.clear_message(message)
        return await self._session.open_message(message, live=False)

    async def _is_own(self, message: Message) -> bool:
        sender = message["sender"]
        me = ids.principal("agent", self._agent_id)
        if ids.principal(sender["type"], sender["id"]) != me:
            return False
        try:
            await self._session.open_message(message, live=False)
        except E2eeError as error:
            # An agent without a key, or in a conversation in clear, has only the server's word.
            return error.reason == "clear" and not await self._must_be_sealed(message)
        return True

    async def _must_be_sealed(self, message: Message) -> bool:
        session = self._session
        return session.has_keys and await session.is_encrypted(message["conversation_id"])


def _timestamp(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat()


def _sent_of(message: Message) -> Sent:
    return {
        "message_id": message["message_id"],
        "conversation_id": message["conversation_id"],
        "seq": message["seq"],
        "created_at": message["created_at"],
        "client_message_id": message.get("client_message_id"),
        "duplicate": True,
    }
