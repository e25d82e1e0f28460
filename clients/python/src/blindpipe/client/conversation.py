"""A conversation as a person sees it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, cast

from ..core.files import NewFile, download_file, upload_file
from ..core.opened import OpenedMessage
from ..core.session import Session
from ..core.types import ConversationInfo, JsonObject, Message, Sent, is_sealed
from ..e2ee import E2eeError, ids
from ..e2ee.envelope import Message as MessagePlace
from ..errors import KeyUnavailable
from ..transport.http import Call, Http
from .rotation import Rotator


@dataclass(frozen=True, slots=True)
class ReceivedMessage:
    """A message, opened if it opens.

    `fault` says why it does not. Then it is shown as said by nobody.
    """

    message: Message
    opened: OpenedMessage | None
    fault: E2eeError | None

    @property
    def content(self) -> JsonObject:
        """The opened content; empty if it does not open."""
        return self.opened.content if self.opened else {}

    @property
    def text(self) -> str | None:
        """The text of a message that opened."""
        text = self.content.get("text")
        return text if isinstance(text, str) else None


@dataclass(slots=True)
class ConversationParts:
    """The parts that a client's conversations share."""

    session: Session
    rotator: Rotator
    clear_chosen: set[str] = field(default_factory=set)
    """Conversations in clear that the person chose."""
    sending: dict[str, asyncio.Lock] = field(default_factory=dict)
    """Sends of a conversation go one after the other."""


class Conversation:
    """A conversation, as one person sees it."""

    def __init__(self, id: str, parts: ConversationParts) -> None:
        self.id = id
        self._parts = parts

    @property
    def _http(self) -> Http:
        return self._parts.session.options.http

    async def info(self) -> ConversationInfo:
        """The conversation as the server shows it, with its members."""
        entry = await self._parts.session.load(self.id)
        assert entry.info is not None
        server = entry.room.server
        now = {"epoch": server.epoch, "rotation_required": server.rotation_required}
        return cast(ConversationInfo, {**entry.info, **now})

    def choose_clear(self) -> None:
        """The person's visible choice to write in clear to somebody who does not speak `bp1`."""
        self._parts.clear_chosen.add(self.id)

    async def send(
        self,
        content: str | JsonObject,
        *,
        client_message_id: str | None = None,
        in_reply_to: ReceivedMessage | None = None,
        to: Sequence[str] = (),
    ) -> Sent:
        """Sends of a conversation are stored in the order in which they were called.

        A client that repeats a send across processes keeps the `client_message_id`. `to` are ids of
        `addressed` agents that can read it.
        """
        lock = self._parts.sending.setdefault(self.id, asyncio.Lock())
        async with lock:
            body = {"type": "text", "text": content} if isinstance(content, str) else content
            id = client_message_id or ids.new_ulid()
            payload = await self._payload(body, id, in_reply_to, to)
            sent: JsonObject = {"payload": payload, "client_message_id": id}
            if in_reply_to is not None:
                sent["in_reply_to"] = in_reply_to.message["message_id"]
            if to:
                sent["recipients"] = list(to)
            path = f"/conversations/{self.id}/messages"
            stored: Sent = await self._http.data(Call("POST", path, body=sent, repeatable=True))
            self._parts.session.sent(stored, payload)
            return stored

    async def _payload(
        self, body: JsonObject, id: str, answered: ReceivedMessage | None, to: Sequence[str]
    ) -> JsonObject:
        if not await self._is_to_be_sealed():
            return body
        session, rotator = self._parts.session, self._parts.rotator
        opened = answered.opened if answered else None
        epoch = opened.epoch if opened else None
        await rotator.prepare(self.id, epoch)
        place = MessagePlace(
            ids.parse(id), ids.parse(answered.message["message_id"]) if answered else None
        )
        content = {**body, "re": opened.re} if opened and opened.re else body
        return await session.seal_payload(self.id, place, content, answering=epoch, addressed=to)

    async def _is_to_be_sealed(self) -> bool:
        """Raises `KeyUnavailable` where somebody speaks no `bp1` and nobody chose clear text."""
        session = self._parts.session
        room = (await session.load(self.id)).room
        writing = room.writing(session.options.trust, self.id in self._parts.clear_chosen)
        if writing == "ask_person":
            text = "somebody here does not speak bp1; choose_clear() writes in clear"
            raise KeyUnavailable(text)
        return writing == "encrypted"

    async def answer(
        self, question: ReceivedMessage, choice: str | None = None, *, text: str | None = None
    ) -> Sent:
        """Answers an agent's question by one of its choices, or by a text."""
        told = {"choice": choice, "text": text}
        content = {name: value for name, value in told.items() if value is not None}
        return await self.send({"type": "answer", **content}, in_reply_to=question)

    async def send_file(
        self, file: NewFile, *, in_reply_to: ReceivedMessage | None = None, to: Sequence[str] = ()
    ) -> Sent:
        """Uploads a file and sends the message that names it."""
        content = await upload_file(self._http, "/files", self.id, file)
        return await self.send(content, in_reply_to=in_reply_to, to=to)

    async def download_file(self, content: JsonObject) -> bytes:
        """The bytes of a file message."""
        return await download_file(self._http, content)

    async def rotate(self) -> None:
        """Makes a fresh secret at once."""
        await self._parts.rotator.rotate(self.id)

    async def add_members(self, *user_ids: str) -> None:
        """Adds people to a group. The next send has a fresh secret for all."""
        path, body = f"/groups/{self.id}/members", {"user_ids": list(user_ids)}
        await self._http.data(Call("POST", path, body=body))
        self._parts.session.forget(self.id)

    async def add_agent(
        self, agent_id: str, visibility: Literal["addressed", "all"] = "addressed"
    ) -> JsonObject:
        """Invites an agent to a group; an `addressed` one reads only what names it."""
        body = {"agent_id": agent_id, "visibility": visibility}
        path = f"/groups/{self.id}/agent-instances"
        instance: JsonObject = await self._http.data(Call("POST", path, body=body))
        self._parts.session.forget(self.id)
        return instance

    async def remove_member(self, principal_id: str) -> None:
        """Removes somebody from a group, and rotates at once.

        Raises `KeyUnavailable` if the server refuses the fresh secret. Nothing is sent until the
        server takes one.
        """
        path = f"/groups/{self.id}/members/{principal_id}"
        await self._http.data(Call("DELETE", path))
        self._parts.session.needs_fresh_secret(self.id)
        await self.rotate()

    async def prepare(self) -> None:
        """Makes a fresh secret if one is due, as each send does."""
        await self._parts.rotator.prepare(self.id)

    async def history(self, *, limit: int = 50) -> AsyncIterator[ReceivedMessage]:
        """Newest first, `limit` a page.

        A reply to a message that was not read yet stands under the notice `no_quote`.
        """
        path, cursor = f"/conversations/{self.id}/messages", None
        while True:
            page = await self._http.call(Call("GET", path, {"cursor": cursor, "limit": limit}))
            # A message is known before the replies to it.
            oldest_first = [await self.open(message, live=False) for message in page.data[::-1]]
            for received in reversed(oldest_first):
                yield received
            cursor = page.next_cursor
            if not cursor:
                return

    async def open(self, message: Message, live: bool) -> ReceivedMessage:
        """Opens a message; `live` says that it comes from the inbox, not from the history."""
        session = self._parts.session
        try:
            if is_sealed(message["payload"]):
                return ReceivedMessage(message, await session.open_message(message, live), None)
            # In a conversation that was encrypted, clear text can be the server's own.
            chosen = self.id in self._parts.clear_chosen
            if not chosen or await session.was_encrypted(self.id):
                raise E2eeError("clear")
            return ReceivedMessage(message, session.clear_message(message), None)
        except E2eeError as error:
            return ReceivedMessage(message, None, error)

    async def mark_read(self, message: ReceivedMessage) -> None:
        """All up to this message is read."""
        body = {"message_id": message.message["message_id"]}
        await self._http.data(Call("POST", f"/conversations/{self.id}/read", body=body))
