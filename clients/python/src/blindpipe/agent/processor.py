"""The way of an event: opened, given to its handlers, and judged."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, cast

from ..core.approvals import Approval
from ..core.content import ContentView
from ..core.payload import message_of
from ..core.session import Session
from ..core.types import Event, JsonObject, Message, is_deleted, is_sealed
from ..e2ee import E2eeError, Principal, from_base64, ids
from ..e2ee.ids import Origin
from ..hooks import HookCaller
from .approvals import ApprovalResult
from .context import Context, Given, QuestionAnswer
from .options import AgentOptions
from .outbox import Answered
from .parts import AgentParts
from .turns import Turns

APPROVAL_CLOSED: Final = "approval.closed"

Handler = Callable[[Context], object]
"""A coroutine function; a plain function serves too."""
Next = Callable[[], Awaitable[None]]
Middleware = Callable[[Context, Next], object]


async def _finished(outcome: object) -> None:
    if inspect.isawaitable(outcome):
        await outcome


@dataclass(slots=True)
class Handlers:
    """The handlers and middleware that a developer has registered."""

    by_event: dict[str, list[Handler]] = field(default_factory=dict)
    by_tag: dict[str, Handler] = field(default_factory=dict)
    by_decision: dict[str, Handler] = field(default_factory=dict)
    """By the name of an approval."""
    middleware: list[Middleware] = field(default_factory=list)

    def add(self, name: str, handler: Handler) -> None:
        """`message` is short for `message.created`."""
        event = "message.created" if name == "message" else name
        self.by_event.setdefault(event, []).append(handler)

    async def run(self, context: Context, handlers: Sequence[Handler], at: int = 0) -> None:
        """Each middleware around the next, and in the middle the handlers in their order."""
        if at < len(self.middleware):

            async def next() -> None:
                await self.run(context, handlers, at + 1)

            return await _finished(self.middleware[at](context, next))
        for handler in handlers:
            await _finished(handler(context))


class StillRunning(Exception):
    """The handlers of this message run already: it was delivered twice."""


class Processor:
    """Runs the handlers of events."""

    def __init__(self, options: AgentOptions, handlers: Handlers, hooks: HookCaller) -> None:
        self._options = options
        self._handlers = handlers
        self._hooks = hooks
        # The origins of the events whose handlers run now.
        self._running: set[bytes] = set()
        self._turns = Turns(options.busy_policy)

    def arrive(self, event: Event) -> None:
        """Looks at an event before its turn: a stop is heard while handlers run."""
        self._turns.arrive(event)

    async def process(self, event: Event, parts: AgentParts, replayed: bool) -> None:
        """Runs the handlers of an event once.

        A message that does not open is told to a hook, and counts as handled. Raises
        `StillRunning`.
        """
        answered: Answered | None = None
        if event["event"] == "message.created":
            if is_deleted(cast(Message, event["data"])):
                # It was deleted, or purged, before anybody has handled it.
                return
            try:
                answered = await self._open(event, parts.session)
            except E2eeError as error:
                return self._undecryptable(event, error.reason)
            if answered is None:
                return
        # Nothing else has run since the look at what was handled before.
        origin = _origin_of(event, answered)
        if origin.hash in self._running:
            raise StillRunning
        self._running.add(origin.hash)
        try:
            try:
                found = await self._find(event, answered, parts)
            except E2eeError as error:
                return self._undecryptable(event, error.reason)
            if not found.handlers:
                return
            await self._run(Given(parts, event, answered, origin, replayed), found)
            if answered is not None and answered.opened.encrypted:
                parts.session.remember(answered.message, answered.opened.sent_at)
        finally:
            self._running.discard(origin.hash)

    async def _run(self, given: Given, found: _Found) -> None:
        turn = self._turns.begin(given.event)
        if turn is None:
            return
        session = given.parts.session

        async def open(event: Event) -> Answered | None:
            try:
                return await self._open(event, session)
            except E2eeError:
                # Its own turn tells that it does not open.
                return None

        context = Context(given, turn, open, found.answer, found.decision)
        try:
            await self._handlers.run(context, found.handlers)
        except asyncio.CancelledError:
            # A turn that was stopped has been handled.
            if not turn.was_cancelled():
                raise
        else:
            turn.was_cancelled()
        finally:
            context.end_status()
        for taken in self._turns.end(turn):
            if taken.opened.encrypted:
                session.remember(taken.message, taken.opened.sent_at)

    def _undecryptable(self, event: Event, reason: str) -> None:
        text = "a message (%s) does not open and reaches no handler: %s"
        self._options.logger.warning(text, event["event_id"], reason)
        self._hooks.call(
            "undecryptable",
            reason=reason,
            event_id=event["event_id"],
            conversation_id=event.get("conversation_id"),
        )

    async def _open(self, event: Event, session: Session) -> Answered | None:
        """The opened message; None if it was handled before. Raises `E2eeError`."""
        message = message_of(event)
        sealed = is_sealed(message["payload"])
        if not sealed:
            # Where anything was ever encrypted, clear text can be the server's own.
            allows = self._options.plaintext == "allow"
            if not allows or await session.was_encrypted(message["conversation_id"]):
                raise E2eeError("clear")
            return Answered(message, session.clear_message(message))
        session.saw_envelope(message["conversation_id"])
        if not session.has_keys:
            raise E2eeError("no_epoch_key")
        opened = await session.open_message(message, live=True)
        if not opened.sender.member:
            # The history shows it under its notice.
            self._undecryptable(event, "not_member")
            return None
        return None if opened.is_replay else Answered(message, opened)

    async def _find(
        self, event: Event, answered: Answered | None, parts: AgentParts
    ) -> _Found:
        content = answered.opened.content if answered else {}
        kind = ContentView.of(content).kind if answered else None
        if answered is not None and kind == "answer" and self._handlers.by_tag:
            return await self._find_answer(answered, parts)
        if kind == "decision":
            # The words of a decision come with the end of its approval.
            return _Found()
        name = kind if kind in ("edit", "delete", "reaction") else event["event"]
        handlers = self._handlers.by_event.get(name, [])
        named = self._handlers.by_decision or self._handlers.by_tag
        if event["event"] == APPROVAL_CLOSED and named:
            return await self._find_decision(event, parts, handlers)
        return _Found(handlers)

    async def _find_answer(self, answered: Answered, parts: AgentParts) -> _Found:
        question = await _asked_question(answered, parts)
        if question is None:
            return _Found()
        handler = self._handlers.by_tag.get(str(question.get("tag", "")))
        answer = _answer_of(question, answered.opened.content)
        return _Found([handler] if handler else [], answer)

    async def _find_decision(
        self, event: Event, parts: AgentParts, handlers: Sequence[Handler]
    ) -> _Found:
        decision = await parts.approvals.result(cast(Approval, event["data"]))
        if decision is None:
            return _Found(handlers)
        answer = _answer_in(decision)
        by_tag = self._handlers.by_tag if answer else {}
        named = [each.get(decision.name) for each in (self._handlers.by_decision, by_tag)]
        return _Found([*handlers, *(each for each in named if each)], answer, decision)


# Not frozen, since one is made for each event: to make a frozen one takes twice as long.
@dataclass(slots=True)
class _Found:
    """The handlers of an event, and what they are told."""

    handlers: Sequence[Handler] = ()
    answer: QuestionAnswer | None = None
    decision: ApprovalResult | None = None


def _origin_of(event: Event, answered: Answered | None) -> Origin:
    message = answered.message if answered and answered.opened.encrypted else None
    id = message.get("client_message_id") if message else None
    if message is None or not id:
        return Origin.event(ids.parse(event["event_id"]))
    sender = ids.principal(message["sender"]["type"], message["sender"]["id"])
    return Origin.message(ids.parse(message["conversation_id"]), sender, ids.parse(id))


async def _asked_question(answered: Answered, parts: AgentParts) -> JsonObject | None:
    """The question, if it opens as the agent's own, `re` fits, and the sender may answer."""
    message, opened = answered.message, answered.opened
    id = message.get("in_reply_to")
    if not id:
        return None
    before = message["message_id"]
    asked = await parts.outbox.question(message["conversation_id"], id, before)
    if asked is None or asked.content.get("type") != "question":
        return None
    if asked.re is not None and not _same_hash(opened.content.get("re"), asked.re):
        return None
    may_answer = asked.content.get("for")
    meant = isinstance(may_answer, list) and any(
        _same_id(each, opened.sender.principal) for each in may_answer
    )
    return asked.content if meant else None


def _answer_in(decision: ApprovalResult) -> QuestionAnswer | None:
    """None for a refusal, an end without an answer, and a question of yes or no."""
    if decision.outcome != "answered":
        return None
    return QuestionAnswer(decision.choice, decision.text, decision.state, decision.question)


def _same_id(one: object, other: Principal) -> bool:
    """Ids have several spellings, so their bytes are compared."""
    try:
        return isinstance(one, str) and ids.parse(one) == other.id
    except E2eeError:
        return False


def _same_hash(one: object, other: str) -> bool:
    try:
        return isinstance(one, str) and from_base64(one) == from_base64(other)
    except E2eeError:
        return False


def _answer_of(question: JsonObject, content: JsonObject) -> QuestionAnswer:
    choice, text, state = content.get("choice"), content.get("text"), question.get("state")
    return QuestionAnswer(
        choice if isinstance(choice, str) else None,
        text if isinstance(text, str) else None,
        state if isinstance(state, dict) else {},
        str(question.get("text", "")),
    )
