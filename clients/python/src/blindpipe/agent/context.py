"""The context that a handler gets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from ..core.files import NewFile, download_file, upload_file
from ..core.opened import Sender
from ..core.types import Event, Grant, JsonObject, Message, Sent, milliseconds
from ..e2ee import ids
from ..e2ee.envelope import Request
from ..e2ee.ids import Origin
from ..errors import UsageError
from ..transport.http import Call, Http
from .outbox import Answered, Draft
from .stream import MessageStream
from .tool_calls import CallResult

if TYPE_CHECKING:
    from .parts import AgentParts


@dataclass(frozen=True, slots=True)
class QuestionAnswer:
    """An answer to a question of this agent."""

    choice: str | None
    text: str | None
    state: JsonObject
    question: str


@dataclass(frozen=True, slots=True)
class ReceivedFile:
    """A file that a message names."""

    name: str
    content: JsonObject = field(repr=False)
    _http: Http = field(repr=False)

    async def read(self) -> bytes:
        """The bytes; nothing is given out before they are checked."""
        return await download_file(self._http, self.content)


class Context:
    """An event, for one run of its handlers."""

    def __init__(
        self,
        parts: AgentParts,
        event: Event,
        answered: Answered | None,
        origin: Origin,
        replayed: bool,
        answer: QuestionAnswer | None = None,
    ) -> None:
        self._parts = parts
        self._answered = answered
        self._origin = origin
        self._answer = answer
        self._sends = 0
        self.event = event
        self.message: Message | None = answered.message if answered else None
        """The message as the server stores it; None for other events."""
        self.replayed = replayed
        """Whether it was in the inbox before this connection, or a webhook tries it again."""
        self.key = origin.key.hex()
        """For other systems' idempotency: a message can come again."""

    @property
    def conversation(self) -> str:
        """The conversation's id; raises for an event without one."""
        id = self.message["conversation_id"] if self.message else self.event.get("conversation_id")
        if not id:
            raise UsageError("this event has no conversation")
        return id

    @property
    def payload(self) -> JsonObject:
        """The opened content, or the event's data."""
        return self._answered.opened.content if self._answered else self.event["data"]

    @property
    def text(self) -> str:
        """The text of a text message, else an empty one."""
        text = self.payload.get("text")
        return text if self.payload.get("type") == "text" and isinstance(text, str) else ""

    @property
    def encrypted(self) -> bool:
        """Whether the message was."""
        return self._answered is not None and self._answered.opened.encrypted

    @property
    def sender(self) -> Sender | None:
        """The sender of the message, as far as it is proven."""
        return self._answered.opened.sender if self._answered else None

    @property
    def sent_at(self) -> datetime | None:
        """By the sender's clock, signed."""
        return self._answered.opened.sent_at if self._answered else None

    @property
    def answer(self) -> QuestionAnswer:
        """In `on_answer`: what was answered."""
        if self._answer is None:
            raise UsageError("this is no answer to a question")
        return self._answer

    def _reply_id(self, key: str | None) -> str:
        """The id of the next send, in the order of the handler's sends, or by its key."""
        if key is None:
            key, self._sends = str(self._sends), self._sends + 1
        return ids.ulid(self._origin.reply(ids.parse(self._parts.agent_id), key))

    def _draft(
        self, conversation_id: str, content: JsonObject, id: str, to: Sequence[str]
    ) -> Draft:
        answered = self._answered
        here = answered is not None and answered.message["conversation_id"] == conversation_id
        caused_at = milliseconds(self.event["created_at"])
        return Draft(conversation_id, content, id, answered if here else None, caused_at, to)

    async def reply(
        self, content: str | JsonObject, *, key: str | None = None, to: Sequence[str] = ()
    ) -> Sent:
        """Answers in this conversation. Run again, it sends nothing twice.

        `key` names this send within the event, instead of its number. `to` are ids of `addressed`
        agents that can read it too.
        """
        return await self.send(self.conversation, content, key=key, to=to)

    async def send(
        self,
        conversation_id: str,
        content: str | JsonObject,
        *,
        key: str | None = None,
        to: Sequence[str] = (),
    ) -> Sent:
        """Sends to any conversation of the agent, as `reply` does to this one."""
        body = {"type": "text", "text": content} if isinstance(content, str) else content
        draft = self._draft(conversation_id, body, self._reply_id(key), to)
        return await self._parts.outbox.send(draft)

    def stream(self, *, key: str | None = None, to: Sequence[str] = ()) -> MessageStream:
        """Encrypted while it is written; `end()` makes it one durable message."""
        id, conversation = self._reply_id(key), self.conversation

        def draft(content: JsonObject) -> Draft:
            return self._draft(conversation, content, id, to)

        parts = self._parts
        return MessageStream(draft, parts.outbox, parts.session, parts.socket())

    def typing(self, state: str = "started") -> None:
        """Tells the members that the agent writes; `stopped` that it does no more."""
        socket = self._parts.socket()
        if socket is not None:
            conversation = self.conversation
            socket.send({"type": "typing", "conversation_id": conversation, "state": state})

    def _spoken_to(self) -> str | None:
        sender = self.sender
        return sender.id if sender is not None and sender.type == "user" else None

    async def call(
        self,
        tool: str,
        scope: str,
        arguments: JsonObject,
        *,
        prompt: str | None = None,
        device: str | None = None,
        user: str | None = None,
        key: str | None = None,
    ) -> CallResult:
        """Asks the person's device to run a tool: it executes and signs, or nobody does.

        The person reads `prompt` beside the arguments. `user` is asked, by default the person
        who was spoken to; `device` names one of the person's devices.
        """
        asked = user or self._spoken_to()
        if asked is None:
            raise UsageError("name the user who is asked")
        place = Request(ids.parse(asked), self._reply_id(key), tool, scope, device)
        return await self._parts.tool_calls.call(self.conversation, place, arguments, prompt)

    async def ask(
        self,
        text: str,
        *,
        tag: str,
        choices: Sequence[str] = (),
        state: JsonObject | None = None,
        users: Sequence[str] | None = None,
        key: str | None = None,
        to: Sequence[str] = (),
    ) -> Sent:
        """A question that may wait for days: its state travels with it, and no process waits.

        `on_answer(tag)` gets the answer with the state. Everybody who can read the question can
        read its state. `users` are the ids of the people who may answer, by default the
        person who was spoken to.
        """
        spoken_to = self._spoken_to()
        asked = users if users is not None else [spoken_to] if spoken_to else []
        question = {
            "type": "question",
            "text": text,
            "tag": tag,
            "choices": list(choices),
            "state": state or {},
            "for": list(asked),
        }
        return await self.reply(question, key=key, to=to)

    async def request_grant(self, *scopes: str, reason: str | None = None) -> Grant:
        """Asks the person for scopes in this conversation; `grant.decided` brings the answer."""
        body = {"conversation_id": self.conversation, "scopes": list(scopes)}
        path = f"/agents/{self._parts.agent_id}/grants/request"
        told = {"reason": reason} if reason else {}
        grant: Grant = await self._parts.http.data(Call("POST", path, body=body | told))
        return grant

    def file(self, content: JsonObject | None = None) -> ReceivedFile:
        """The file of this message, or of the content given."""
        named = self.payload if content is None else content
        if named.get("type") != "file":
            raise UsageError("this message is no file")
        return ReceivedFile(str(named.get("name", "")), named, self._parts.http)

    async def send_file(
        self, file: NewFile, *, key: str | None = None, to: Sequence[str] = ()
    ) -> Sent:
        """Uploads a file and sends the message that names it."""
        base = f"/agents/{self._parts.agent_id}/files"
        content = await upload_file(self._parts.http, base, self.conversation, file)
        return await self.reply(content, key=key, to=to)

    async def answered(self) -> bool:
        """Whether a first reply is in the history already: for handlers that cost money."""
        id = ids.ulid(self._origin.reply(ids.parse(self._parts.agent_id), "0"))
        since = milliseconds(self.event["created_at"])
        found = await self._parts.outbox.find(self.conversation, id, self._answered, since)
        return found is not None
