"""The context that a handler gets."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from ..core.approvals import Approval
from ..core.content import delete_content, edit_content, reaction_content, target_of
from ..core.files import NewFile, download_file, upload_file
from ..core.opened import Sender
from ..core.types import Event, Grant, JsonObject, Message, Sent, milliseconds
from ..e2ee import ids
from ..e2ee.envelope import Request
from ..e2ee.ids import Origin
from ..errors import UsageError
from ..transport.http import Call, Http
from .approvals import DEFAULT_EXPIRY, MAX_EXPIRY, ApprovalDraft, ApprovalResult
from .outbox import Answered, Draft
from .stream import MessageStream
from .tool_calls import CallResult
from .turns import SteerMessage, Turn

if TYPE_CHECKING:
    from .parts import AgentParts

STATUS_KEY: Final = ":status"
"""The key of the stream that shows a status before there is any text. It becomes no message."""


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


def _target(message: Answered) -> JsonObject:
    return target_of(message.message["message_id"], message.opened.re)


# Not frozen, since one is made for each event: to make a frozen one takes twice as long.
@dataclass(slots=True)
class Given:
    """An event, and what a context is made of."""

    parts: AgentParts
    event: Event
    answered: Answered | None
    origin: Origin
    replayed: bool


class Context:
    """An event, for one run of its handlers."""

    def __init__(
        self,
        given: Given,
        turn: Turn,
        open: Callable[[Event], Awaitable[Answered | None]],
        answer: QuestionAnswer | None = None,
        decision: ApprovalResult | None = None,
    ) -> None:
        event, answered, origin = given.event, given.answered, given.origin
        self._parts = given.parts
        self._answered = answered
        self._origin = origin
        self._turn = turn
        self._open = open
        self._answer = answer
        self._decision = decision
        self._sends = 0
        self._stream: MessageStream | None = None
        self._status: MessageStream | None = None
        self.event = event
        self.message: Message | None = answered.message if answered else None
        """The message as the server stores it; None for other events."""
        self.replayed = given.replayed
        """Whether it was in the inbox before this connection, or a webhook tries it again."""
        self.key = origin.key.hex()
        """For other systems' idempotency: a message can come again."""

    @property
    def stopped(self) -> asyncio.Event:
        """Set when a person has stopped this. The handler is cancelled too, and not run again."""
        return self._turn.stopped

    async def steer(self) -> list[SteerMessage]:
        """The messages that have arrived here since the handler began, or since the last call.

        What is taken here is handled by this handler, and by no other.
        """
        found = []
        for event in self._turn.arrived[:]:
            self._turn.arrived.remove(event)
            answered = await self._open(event)
            if answered is not None:
                self._turn.taken_events.append(event)
                found.append(SteerMessage(answered.message, answered.opened))
        self._turn.taken.extend(found)
        return found

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

    @property
    def decision(self) -> ApprovalResult:
        """In `on_decision`: what was decided."""
        if self._decision is None:
            raise UsageError("this is no decision about an approval")
        return self._decision

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
        sent = await self._parts.outbox.send(draft)
        self.end_status()
        return sent

    async def edit(
        self, sent: Sent, content: str | JsonObject, *, key: str | None = None
    ) -> Sent:
        """Replaces the content of a text or a file that this agent has sent."""
        body = {"type": "text", "text": content} if isinstance(content, str) else content
        own, id = await self._parts.outbox.own(sent), self._reply_id(key)
        return await self._change(own, edit_content(_target(own), body), id)

    async def delete(self, sent: Sent, *, key: str | None = None) -> None:
        """Takes a message of this agent back: it says so, and the service forgets the payload."""
        id = self._reply_id(key)
        try:
            own = await self._parts.outbox.own(sent)
        except UsageError:
            # An earlier run has deleted it.
            return await self._parts.outbox.delete(sent)
        await self._change(own, delete_content(_target(own)), id)
        await self._parts.outbox.delete(sent)

    async def react(self, emoji: str, *, remove: bool = False, key: str | None = None) -> Sent:
        """Puts an emoji beside this message, or takes the agent's own away."""
        if self._answered is None:
            raise UsageError("this event brings no message")
        content = reaction_content(_target(self._answered), emoji, remove)
        return await self._change(self._answered, content, self._reply_id(key))

    async def _change(self, target: Answered, content: JsonObject, id: str) -> Sent:
        caused_at = milliseconds(self.event["created_at"])
        conversation, about = target.message["conversation_id"], target.message["message_id"]
        draft = Draft(conversation, content, id, target, caused_at, refs=[about])
        return await self._parts.outbox.send(draft)

    def stream(self, *, key: str | None = None, to: Sequence[str] = ()) -> MessageStream:
        """Encrypted while it is written; `end()` makes it one durable message."""
        id, conversation = self._reply_id(key), self.conversation

        def draft(content: JsonObject) -> Draft:
            return self._draft(conversation, content, id, to)

        self.end_status()
        parts = self._parts
        self._stream = MessageStream(draft, parts.outbox, parts.session, parts.socket())
        return self._stream

    def status(self, text: str) -> None:
        """Says what the agent does meanwhile, such as a search: beside the stream, or before it.

        It ends with the next text, with a reply, or with the handler.
        """
        if self._stream is None or self._stream.is_ended:
            self._status = self._stream = self.stream(key=STATUS_KEY)
        self._stream.status(text)

    def end_status(self) -> None:
        """Takes away what `status` shows before there is any text."""
        if self._status is not None:
            self._status.cancel()
            self._status = self._stream = None

    def typing(self, state: str = "started") -> None:
        """Tells the members that the agent writes; `stopped` that it does no more."""
        socket = self._parts.socket()
        if socket is not None:
            conversation = self.conversation
            socket.send({"type": "typing", "conversation_id": conversation, "state": state})

    def _spoken_to(self) -> str | None:
        """The sender, or the first person who decided."""
        if self._decision is not None:
            return self._decision.decided_by
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
    ) -> Approval:
        """A question that may wait for 30 days: its state travels with it, and no process waits.

        It is an approval that people answer. `on_answer(tag)` gets the answer with the state, and
        `on_decision(tag)` a refusal too, and the end of the time. Everybody who can read the
        question can read its state. `users` are the ids of the people who may answer, by default
        the person who was spoken to.
        """
        spoken_to = self._spoken_to()
        asked = users or ([spoken_to] if spoken_to else [])
        if not asked:
            raise UsageError("name the users who are asked")
        question = ApprovalDraft(
            tag, {}, text, choices, state or {}, asked, expires=MAX_EXPIRY, asks=True
        )
        return await self._ask(question, key)

    async def approve(
        self,
        name: str,
        arguments: JsonObject | None = None,
        *,
        text: str | None = None,
        choices: Sequence[str] = (),
        state: JsonObject | None = None,
        of: Sequence[str] = (),
        quorum: int = 1,
        deny_quorum: int = 1,
        expires: str | timedelta = DEFAULT_EXPIRY,
        key: str | None = None,
    ) -> Approval:
        """Asks people of this conversation for an approval, and returns at once.

        `on_decision(name)` gets the decision with `arguments` and `state`, perhaps days later, in
        any process. `of` are the ids of the people who are asked, by default all of the
        conversation. With `choices`, people choose instead of saying yes.
        """
        asked = ApprovalDraft(
            name, arguments or {}, text, choices, state or {}, of, quorum, deny_quorum, expires
        )
        return await self._ask(asked, key)

    async def _ask(self, asked: ApprovalDraft, key: str | None) -> Approval:
        id, caused_at = self._reply_id(key), milliseconds(self.event["created_at"])
        draft = Draft(self.conversation, asked.content(), id, self._clear_answered(), caused_at)
        return await self._parts.approvals.ask(draft, asked)

    def _clear_answered(self) -> Answered | None:
        """What came in clear is answered in clear. An approval is no reply to it."""
        answered = self._answered
        return answered if answered is not None and not answered.opened.encrypted else None

    async def request_grant(
        self, *scopes: str, reason: str | None = None, user: str | None = None
    ) -> Grant:
        """Asks a person for scopes in this conversation; `grant.decided` brings the answer.

        `user` is asked, by default the person who was spoken to. A group needs one of them.
        """
        body = {"conversation_id": self.conversation, "scopes": list(scopes)}
        path = f"/agents/{self._parts.agent_id}/grants/request"
        asked = user or self._spoken_to()
        told = ({"user_id": asked} if asked else {}) | ({"reason": reason} if reason else {})
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
