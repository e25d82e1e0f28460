"""A conversation as a person sees it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, cast

from ..core.approvals import read_approval
from ..core.content import delete_content, edit_content, reaction_content, target_of
from ..core.files import NewFile, download_file, upload_file
from ..core.large import fitting_content
from ..core.opened import OpenedMessage
from ..core.search import epoch_tokens, message_tokens
from ..core.session import Session
from ..core.types import (
    ConversationInfo,
    JsonObject,
    LiveStream,
    Message,
    Sent,
    is_deleted,
    is_sealed,
)
from ..e2ee import E2eeError, ids, search
from ..e2ee.envelope import Message as MessagePlace
from ..errors import KeyUnavailable, UsageError
from ..transport.http import Call, Http
from ..transport.socket import Frame
from .approvals import approval_request
from .clear import ClearChoices
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
    def deleted(self) -> bool:
        """Whether its payload is gone. Then it is shown as deleted."""
        return is_deleted(self.message)

    @property
    def content(self) -> JsonObject:
        """The opened content; empty if it does not open."""
        return self.opened.content if self.opened else {}

    @property
    def text(self) -> str | None:
        """The text of a message that opened."""
        text = self.content.get("text")
        return text if isinstance(text, str) else None


@dataclass(frozen=True, slots=True)
class HistoryPage:
    """A page of the history, for `timeline(page.messages, page.refs)`."""

    messages: Sequence[ReceivedMessage]
    """The newest first."""
    refs: Sequence[ReceivedMessage]
    """The messages that refer to one of them, by rising `seq`."""
    refs_truncated: bool
    """There are more of them."""


def _target(message: ReceivedMessage) -> JsonObject:
    if message.opened is None:
        raise UsageError("a message that does not open cannot be changed")
    return target_of(message.message["message_id"], message.opened.re)


@dataclass(slots=True)
class ConversationParts:
    """The parts that a client's conversations share."""

    session: Session
    rotator: Rotator
    send_frame: Callable[[Frame], bool]
    """Writes to the socket of `Client.events`; false while there is none."""
    clear: ClearChoices
    """The conversations in which the person chose to write in clear."""
    searchable: bool = False
    """Sends tell the service keyed hashes of their words."""
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

    async def choose_clear(self) -> None:
        """The person's visible choice to write in clear to somebody who does not speak `bp1`.

        The device's store keeps it. Raises whatever a store raises that fails; then nothing is
        chosen.
        """
        await self._parts.clear.choose(self.id)

    async def send(
        self,
        content: str | JsonObject,
        *,
        client_message_id: str | None = None,
        in_reply_to: ReceivedMessage | None = None,
        to: Sequence[str] = (),
        refs: Sequence[str] = (),
        search_tokens: Sequence[str] = (),
    ) -> Sent:
        """Sends of a conversation are stored in the order in which they were called.

        A client that repeats a send across processes keeps the `client_message_id`. `to` are ids of
        `addressed` agents that can read it. `refs` are the messages that it concerns, in clear.
        `search_tokens` are the program's own keyed hashes of words, in place of those of
        `ClientOptions.searchable`.
        """
        lock = self._parts.sending.setdefault(self.id, asyncio.Lock())
        async with lock:
            body = {"type": "text", "text": content} if isinstance(content, str) else content
            id = client_message_id or ids.new_ulid()
            payload = await self.payload(body, id, in_reply_to, to)
            sent: JsonObject = {"payload": payload, "client_message_id": id}
            if in_reply_to is not None:
                sent["in_reply_to"] = in_reply_to.message["message_id"]
            if to:
                sent["recipients"] = list(to)
            if refs:
                sent["refs"] = list(refs)
            if not search_tokens and self._parts.searchable:
                search_tokens = await message_tokens(self._parts.session, self.id, body, payload)
            if search_tokens:
                sent["search_tokens"] = list(search_tokens)
            path = f"/conversations/{self.id}/messages"
            stored: Sent = await self._http.data(Call("POST", path, body=sent, repeatable=True))
            self._parts.session.sent(stored, payload)
            return stored

    async def search(self, text: str) -> AsyncIterator[JsonObject]:
        """The messages whose text has all these words, the newest first.

        These are messages that clients with `searchable` have sent, in the newest eight epochs whose
        secrets this device holds. Each epoch counts as a search. Raises `UsageError` without a word,
        or with more than 16.
        """
        words = search.words(text)
        if not 1 <= len(words) <= search.MAX_SEARCH_TOKENS:
            raise UsageError(f"a search takes 1 to {search.MAX_SEARCH_TOKENS} words")
        for tokens in await epoch_tokens(self._parts.session, self.id, words):
            async for hit in self._http.pages("/search", {"tokens": ",".join(tokens)}):
                yield hit

    async def payload(
        self,
        body: JsonObject,
        id: str,
        answered: ReceivedMessage | None = None,
        to: Sequence[str] = (),
    ) -> JsonObject:
        """The payload of a message with this id, sealed unless the conversation is in clear."""
        if not await self._is_to_be_sealed():
            return body
        session, rotator = self._parts.session, self._parts.rotator
        body = await fitting_content(self._http, "/files", self.id, body)
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
        writing = room.writing(session.options.trust, self.id in self._parts.clear)
        if writing == "ask_person":
            text = "somebody here does not speak bp1; choose_clear() writes in clear"
            raise KeyUnavailable(text)
        return writing == "encrypted"

    async def reply(
        self, message: ReceivedMessage, content: str | JsonObject, *, to: Sequence[str] = ()
    ) -> Sent:
        """Answers a message."""
        return await self.send(content, in_reply_to=message, to=to)

    async def edit(
        self, message: ReceivedMessage, content: str | JsonObject, *, to: Sequence[str] = ()
    ) -> Sent:
        """Replaces the content of a text or a file that this person has sent."""
        body = {"type": "text", "text": content} if isinstance(content, str) else content
        self._must_be_own(message)
        return await self._change(message, edit_content(_target(message), body), to)

    async def delete(self, message: ReceivedMessage) -> None:
        """Takes a message back: its author says so, and the service forgets the payload.

        An owner or an admin of a group can delete the messages of others.
        """
        if message.opened is not None and self._is_own(message):
            await self._change(message, delete_content(_target(message)), ())
        path = f"/conversations/{self.id}/messages/{message.message['message_id']}"
        await self._http.data(Call("DELETE", path, repeatable=True))

    async def react(
        self, message: ReceivedMessage, emoji: str, *, remove: bool = False
    ) -> Sent:
        """Puts an emoji beside a message, or takes one's own away."""
        content = reaction_content(_target(message), emoji, remove)
        return await self._change(message, content, ())

    async def _change(
        self, message: ReceivedMessage, content: JsonObject, to: Sequence[str]
    ) -> Sent:
        return await self.send(content, to=to, refs=[message.message["message_id"]])

    def _is_own(self, message: ReceivedMessage) -> bool:
        sender, me = message.message["sender"], self._parts.session.options.me
        return ids.principal(sender["type"], sender["id"]) == me

    def _must_be_own(self, message: ReceivedMessage) -> None:
        if not self._is_own(message):
            raise UsageError("only the author edits a message")

    async def answer(
        self, question: ReceivedMessage, choice: str | None = None, *, text: str | None = None
    ) -> None:
        """Answers an agent's question by one of its choices, or by a text."""
        if question.content.get("type") == "approval":
            approval = await read_approval(self._parts.session, question.message["message_id"])
            request = await approval_request(self._parts.session, self, approval)
            await request.answer(choice, text=text)
            return
        told = {"choice": choice, "text": text}
        content = {name: value for name, value in told.items() if value is not None}
        await self.send({"type": "answer", **content}, in_reply_to=question)

    async def send_file(
        self, file: NewFile, *, in_reply_to: ReceivedMessage | None = None, to: Sequence[str] = ()
    ) -> Sent:
        """Uploads a file and sends the message that names it."""
        content = await upload_file(self._http, "/files", self.id, file)
        return await self.send(content, in_reply_to=in_reply_to, to=to)

    async def download_file(self, content: JsonObject) -> bytes:
        """The bytes of a file message."""
        return await download_file(self._http, content)

    async def stop(
        self, *, agent_id: str | None = None, in_reply_to: ReceivedMessage | None = None
    ) -> int:
        """Stops what agents do here: all of it, or an agent's, or the answer to a message.

        Returns the number of agents that were told.
        """
        body: JsonObject = {} if agent_id is None else {"agent_id": agent_id}
        if in_reply_to is not None:
            body["in_reply_to"] = in_reply_to.message["message_id"]
        path = f"/conversations/{self.id}/stop"
        told = await self._http.data(Call("POST", path, body=body, repeatable=True))
        return int(told["stopped"])

    async def streams(self) -> list[LiveStream]:
        """The streams that agents are writing here at this moment, oldest first.

        `Client.events` brings all that they have written so far, and then goes on.
        """
        path = f"/conversations/{self.id}/streams"
        live: list[LiveStream] = await self._http.data(Call("GET", path))
        for stream in live:
            self._parts.send_frame({"type": "stream.sync", "stream_id": stream["stream_id"]})
        return live

    async def rotate(self) -> None:
        """Makes a fresh secret at once."""
        await self._parts.rotator.rotate(self.id)

    async def add_members(self, *user_ids: str) -> None:
        """Adds people to a group. The next send has a fresh secret for all."""
        path, body = f"/groups/{self.id}/members", {"user_ids": list(user_ids)}
        await self._http.data(Call("POST", path, body=body))
        self._parts.session.forget(self.id)

    async def set_role(
        self, principal_id: str, role: Literal["admin", "member", "owner"]
    ) -> JsonObject:
        """Another role for a member of a group."""
        path = f"/groups/{self.id}/members/{principal_id}"
        member: JsonObject = await self._http.data(Call("PATCH", path, body={"role": role}))
        return member

    async def set_title(self, title: str) -> JsonObject:
        """Another title, which the service reads."""
        return await self._update({"title": title})

    async def require_encryption(self) -> JsonObject:
        """From now on the service takes nothing in clear here. There is no way back."""
        return await self._update({"encryption": "required"})

    async def _update(self, changes: JsonObject) -> JsonObject:
        path = f"/conversations/{self.id}"
        changed: JsonObject = await self._http.data(Call("PATCH", path, body=changes))
        self._parts.session.forget(self.id)
        return changed

    async def remove_agent(self, instance_id: str) -> None:
        """Removes an agent from a group, and rotates at once."""
        path = f"/groups/{self.id}/agent-instances/{instance_id}"
        await self._http.data(Call("DELETE", path))
        self._parts.session.needs_fresh_secret(self.id)
        await self.rotate()

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

    async def request_rotation(self) -> JsonObject:
        """Asks the other person of a conversation of two for a fresh secret."""
        call = Call("POST", "/keys/rotation/request", body={"conversation_id": self.id})
        asked: JsonObject = await self._http.data(call)
        return asked

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

    async def pages(self, *, limit: int = 50) -> AsyncIterator[HistoryPage]:
        """Pages of the history, the newest first, with the messages that refer to theirs."""
        path, cursor = f"/conversations/{self.id}/messages", None
        while True:
            query = {"limit": limit, "cursor": cursor, "include": "refs"}
            answer = await self._http.call(Call("GET", path, query))
            opened = [await self.open(message, live=False) for message in answer.data[::-1]]
            refs = [await self.open(each, live=False) for each in answer.body.get("refs") or ()]
            is_cut = bool(answer.body.get("refs_truncated"))
            yield HistoryPage(opened[::-1], refs, is_cut)
            cursor = answer.next_cursor
            if not cursor:
                return

    async def open(self, message: Message, live: bool) -> ReceivedMessage:
        """Opens a message; `live` says that it comes from the inbox, not from the history."""
        session = self._parts.session
        if is_deleted(message):
            return ReceivedMessage(message, None, None)
        try:
            if is_sealed(message["payload"]):
                return ReceivedMessage(message, await session.open_message(message, live), None)
            # In a conversation that was encrypted, clear text can be the server's own.
            chosen = self.id in self._parts.clear
            if not chosen or await session.was_encrypted(self.id):
                raise E2eeError("clear")
            return ReceivedMessage(message, session.clear_message(message), None)
        except E2eeError as error:
            return ReceivedMessage(message, None, error)

    async def mark_read(self, message: ReceivedMessage) -> None:
        """All up to this message is read."""
        body = {"message_id": message.message["message_id"]}
        await self._http.data(Call("POST", f"/conversations/{self.id}/read", body=body))
