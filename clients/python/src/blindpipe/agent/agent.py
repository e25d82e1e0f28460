"""An agent: it opens and handles events in order, and answers each exactly once.

Why: ADR 74.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, Literal, TypeVar, cast, overload

from ..core.approvals import Approval
from ..core.large import resolved_event
from ..core.types import Event, JsonObject, Kind
from ..e2ee import ids
from ..errors import BlindpipeError, UsageError
from ..hooks import HookCaller
from ..stores.shared_store import SharedStore
from ..transport.clock import now_ms
from ..transport.http import Call, Http, Method
from ..transport.socket import Socket
from .approvals import ApprovalDraft
from .inbox import Inbox, InboxParts, is_the_end, learn, observe
from .options import AgentOptions
from .outbox import Draft
from .processor import Handler, Handlers, Middleware, Processor, StillRunning
from .startup import Running, check_key_again, start
from .transports import SocketReader, read_by_poll, unless_stopped
from .turns import STOP
from .webhook import (
    DEADLINE_SECONDS,
    MAX_BODY_BYTES,
    AsgiApp,
    Secrets,
    WebhookAnswer,
    answer_batch,
    asgi_app,
    challenge_of,
    checked_keys,
    delivered,
    verify_delivery,
)

_H = TypeVar("_H", bound=Handler)
_M = TypeVar("_M", bound=Middleware)

Transport = Literal["socket", "poll"]

KEY_CHECK_SECONDS: Final = 24 * 3_600.0
"""A key whose end has begun lasts for 7 days."""


class Agent:
    """Register handlers, then `run()`."""

    def __init__(self, options: AgentOptions) -> None:
        self._options = options
        self._logger = options.logger
        self._hooks = HookCaller(options.hooks, options.logger)
        self._handlers = Handlers()
        self._processor = Processor(options, self._handlers, self._hooks)
        self._http = Http(
            options.url,
            self._hooks,
            self._token,
            ssl_context=options.ssl_context,
            allow_http=options.allow_http,
        )
        self._starting: asyncio.Task[Running] | None = None
        self._stopping: asyncio.Event | None = None
        self._is_stopped = False
        self._is_activated = False
        self._reader: SocketReader | None = None
        self._failure: BaseException | None = None
        self._key_checked_at = time.monotonic()

    @classmethod
    def from_env(cls, **changes: Any) -> Agent:
        """Reads `BLINDPIPE_URL`, `_AGENT_ID`, `_TOKEN`, `_KEY`, `_PLAINTEXT` and `_PINS`.

        `changes` are fields of `AgentOptions`.
        """
        return cls(replace(AgentOptions.from_env(), **changes))

    async def _token(self) -> str:
        return self._options.token

    @property
    def agent_id(self) -> str:
        """The id of this agent."""
        return self._options.agent_id

    @overload
    def on(self, name: str) -> Callable[[_H], _H]: ...
    @overload
    def on(self, name: str, handler: _H) -> _H: ...
    def on(self, name: str, handler: _H | None = None) -> _H | Callable[[_H], _H]:
        """`message`, or any name of the event catalogue. Handlers of a name run in their order."""

        def register(handler: _H) -> _H:
            self._handlers.add(name, handler)
            return handler

        return register if handler is None else register(handler)

    @overload
    def on_answer(self, tag: str) -> Callable[[_H], _H]: ...
    @overload
    def on_answer(self, tag: str, handler: _H) -> _H: ...
    def on_answer(self, tag: str, handler: _H | None = None) -> _H | Callable[[_H], _H]:
        """Answers to the questions with this tag."""

        def register(handler: _H) -> _H:
            self._handlers.by_tag[tag] = handler
            return handler

        return register if handler is None else register(handler)

    def on_stop(self, handler: _H) -> _H:
        """Told after a person has stopped what ran in a conversation."""
        self._handlers.add(STOP, handler)
        return handler

    @overload
    def on_decision(self, name: str) -> Callable[[_H], _H]: ...
    @overload
    def on_decision(self, name: str, handler: _H) -> _H: ...
    def on_decision(self, name: str, handler: _H | None = None) -> _H | Callable[[_H], _H]:
        """Decisions about the approvals with this name, and their ends without one."""

        def register(handler: _H) -> _H:
            self._handlers.by_decision[name] = handler
            return handler

        return register if handler is None else register(handler)

    async def approve(
        self, conversation_id: str, name: str, arguments: JsonObject | None = None, **options: Any
    ) -> Approval:
        """As `Context.approve`, outside of a handler. Called again, it asks again."""
        running = await self._start()
        if not await running.lessons.enter(conversation_id):
            raise OSError("the store has failed")
        parts = running.parts
        asked = ApprovalDraft(name, arguments or {}, **options)
        draft = Draft(conversation_id, asked.content(), ids.new_ulid(), None, now_ms())
        return await parts.approvals.ask(draft, asked)

    async def approval(self, approval_id: str) -> Approval:
        """An approval of this agent, as it stands."""
        return await (await self._start()).parts.approvals.read(approval_id)

    async def withdraw(self, approval_id: str) -> Approval:
        """Takes an approval back that nobody has decided."""
        return await (await self._start()).parts.approvals.withdraw(approval_id)

    async def approvals(self) -> AsyncIterator[Approval]:
        """The approvals of this agent, newest first."""
        async for approval in self._pages("approvals"):
            yield cast(Approval, approval)

    async def conversations(self) -> AsyncIterator[JsonObject]:
        """The conversations of this agent, latest activity first."""
        async for conversation in self._pages("conversations"):
            yield conversation

    async def _pages(self, what: str) -> AsyncIterator[JsonObject]:
        http = (await self._start()).parts.http
        async for item in http.pages(f"/agents/{self.agent_id}/{what}"):
            yield item

    def use(self, middleware: _M) -> _M:
        """Called around all handlers, as `await middleware(ctx, next)`."""
        self._handlers.middleware.append(middleware)
        return middleware

    async def _start(self) -> Running:
        if self._starting is None:
            starting = start(self._options, self._hooks, self._http, self._socket)
            self._starting = asyncio.create_task(starting)
        try:
            return await asyncio.shield(self._starting)
        except Exception:
            self._starting = None
            await self.close()
            raise

    def _socket(self) -> Socket | None:
        return self._reader.socket if self._reader else None

    async def check(self) -> None:
        """Checks token and key, and registers a first key, without handling anything."""
        await self._start()

    async def request(
        self, method: Method, path: str, body: Mapping[str, Any] | None = None, **query: Any
    ) -> Any:
        """Any call of the API in this agent's name; answers all fields of the answer."""
        # Without the slash, the path could lead the token to another host.
        if not path.startswith("/"):
            raise UsageError("a path begins with /")
        call = Call(method, path, query, body=dict(body) if body is not None else None)
        return dict((await self._http.call(call)).body)

    async def trust(self, type: Kind, id: str, key_id: str) -> None:
        """Accepts a key that waits: a person behind this agent takes it for that principal's.

        `key_id` has 32 digits of hex, as the hook `key_changed` names it. Raises `UsageError` for a
        key that was never shown, and `OSError` if the store cannot be read.
        """
        running = await self._start()
        # Another process may have seen the key.
        if not await running.lessons.enter(None):
            raise OSError("the store has failed")
        who = ids.principal(type, id)
        if not running.trust.confirm(who, bytes.fromhex(key_id), now_ms()):
            raise UsageError("this key was never shown")
        running.parts.session.reconsider(who)
        running.parts.session.options.on_trust_changed()
        await running.lessons.save()

    def run(
        self,
        *,
        transport: Transport = "socket",
        standby: bool = False,
        shared: bool = False,
        group: str = "default",
    ) -> None:
        """Runs until SIGTERM or SIGINT; finishes what it began."""
        asyncio.run(
            self.serve(transport=transport, standby=standby, shared=shared, group=group)
        )

    async def serve(
        self,
        *,
        transport: Transport = "socket",
        standby: bool = False,
        shared: bool = False,
        group: str = "default",
    ) -> None:
        """As `run`, in a loop that runs already. `stop()` ends it, also before it has begun.

        `poll` is for cron and serverless. A standby keeps keys warm and handles nothing until
        `activate()`. All processes with `shared` split the conversations of the group among them;
        their `pins` must be a `SharedStore`, such as `SharedFolder`. Each group has a store of its
        own.
        """
        if shared:
            self._check_shared(transport, standby)
        stopping = self._stopping = asyncio.Event()
        if self._is_stopped:
            return await self.close()
        self._failure = None
        unwatch = self._watch_signals()
        checks: asyncio.Task[None] | None = None
        try:
            running = await unless_stopped(stopping, self._start())
            if running is None:
                return self._abandon_start()
            inbox = self._inbox(running, stopping, shared)
            checks = asyncio.create_task(self._check_daily(running))
            if transport == "poll":
                await read_by_poll(running.parts, inbox, self._hooks, stopping)
            else:
                await self._run_socket(running, inbox, standby, group if shared else None)
            await running.lessons.save()
            if self._failure is not None:
                raise self._failure
        finally:
            unwatch()
            if checks is not None:
                checks.cancel()
            self._reader = None
            await self.close()

    async def _check_daily(self, running: Running) -> None:
        while True:
            await asyncio.sleep(KEY_CHECK_SECONDS)
            await self._check_key(running)

    async def _check_key(self, running: Running) -> None:
        self._key_checked_at = time.monotonic()
        signer = running.parts.session.options.signer
        if signer is not None:
            await check_key_again(self._options, self._http, signer)

    def _abandon_start(self) -> None:
        if self._starting is not None:
            self._starting.cancel()
            self._starting = None

    def _check_shared(self, transport: Transport, standby: bool) -> None:
        if transport != "socket" or standby:
            raise UsageError("a shared agent reads a socket, and is no standby")
        if not isinstance(self._options.pins, SharedStore):
            # Each process would trust other keys, and handle again what another one has handled.
            raise UsageError("a shared agent needs pins that processes share, such as SharedFolder")

    def _inbox(self, running: Running, stopping: asyncio.Event, is_shared: bool) -> Inbox:
        return Inbox(
            InboxParts(
                self._options,
                self._processor,
                self._hooks,
                self._logger,
                running.parts,
                running.lessons,
                stopping,
                on_failure=self._fail,
                send_ack=self._send_ack,
                is_shared=is_shared,
            )
        )

    def _fail(self, error: BaseException) -> None:
        self._failure = error
        self.stop()

    def _send_ack(self, cursor: str) -> bool:
        return self._reader is not None and self._reader.socket.send(
            {"type": "ack", "cursor": cursor}
        )

    async def _run_socket(
        self, running: Running, inbox: Inbox, standby: bool, group: str | None
    ) -> None:
        assert self._stopping is not None
        stopping, is_standby = self._stopping, standby and not self._is_activated
        http = running.parts.http
        reader = SocketReader(self._options, self._hooks, inbox, http, is_standby, group)
        self._reader = reader
        ended = asyncio.create_task(reader.socket.run())
        stops = asyncio.create_task(stopping.wait())
        try:
            await asyncio.wait((ended, stops), return_when=asyncio.FIRST_COMPLETED)
            await inbox.finish()
            reader.socket.close()
            await ended
        finally:
            stops.cancel()
            ended.cancel()

    def stop(self) -> None:
        """Takes no more events, lets handlers end, acknowledges, and closes.

        It is final: a later `serve` ends at once.
        """
        self._is_stopped = True
        if self._stopping is not None:
            self._stopping.set()

    def activate(self) -> None:
        """Ends a standby: this process handles the events from the last acknowledgement on."""
        self._is_activated = True
        if self._reader is not None:
            self._reader.activate()

    async def close(self) -> None:
        """Closes the connections of an agent that is not served any more."""
        await self._http.close()

    def _watch_signals(self) -> Callable[[], None]:
        loop = asyncio.get_running_loop()
        watched = []
        # Outside the main thread, and on Windows, a signal is its owner's business.
        with suppress(NotImplementedError, RuntimeError, ValueError):
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, self.stop)
                watched.append(number)

        def unwatch() -> None:
            for number in watched:
                loop.remove_signal_handler(number)

        return unwatch

    async def deliver(
        self, secrets: Secrets, headers: Mapping[str, str], body: bytes
    ) -> WebhookAnswer:
        """Verifies and handles a call of a webhook, for any framework.

        The handlers of a call have 9 s here; slow ones belong on a socket or a poll. A delivery is
        answered 200 once its handler has ended, and 503 while the handler of an earlier one runs.
        The answer to a batch names the deliveries that have failed.
        """
        if len(body) > MAX_BODY_BYTES:
            return WebhookAnswer.text(413, "too large")
        if not verify_delivery(secrets, headers, body):
            return WebhookAnswer.text(401, "not genuine")
        try:
            call = delivered(body)
            answer = None if isinstance(call, list) else challenge_of(call)
        except (ValueError, LookupError, TypeError):
            return WebhookAnswer.text(400, "no event")
        if answer is not None:
            return answer
        until = asyncio.get_running_loop().time() + DEADLINE_SECONDS
        if isinstance(call, list):
            return await answer_batch(call, lambda event: self._answer(event, until))
        return await self._answer(call, until)

    async def _answer(self, event: Event, until: float) -> WebhookAnswer:
        """Handles an event until a time of the loop's clock."""
        try:
            async with asyncio.timeout_at(until):
                await self._deliver(event)
        except TimeoutError:
            return WebhookAnswer.later("not in time")
        except StillRunning:
            return WebhookAnswer.later("an earlier delivery is still being handled")
        except BaseException as error:
            if is_the_end(error):
                raise
            if isinstance(error, BlindpipeError) and error.retryable:
                return WebhookAnswer.later("the service is away")
            self._logger.error("a handler has failed: %s", type(error).__name__)
            return WebhookAnswer.text(500, "the handler has failed")
        return WebhookAnswer(200)

    async def _deliver(self, event: Event) -> None:
        running = await self._start()
        parts = running.parts
        event = await resolved_event(parts.http, event)
        if time.monotonic() - self._key_checked_at > KEY_CHECK_SECONDS:
            await self._check_key(running)
        if event["event"] == "artifact_response":
            parts.tool_calls.deliver(event["data"])
        if not await running.lessons.enter(event.get("conversation_id")):
            raise OSError("the store has failed")
        self._processor.arrive(event)
        observe(parts.session, event, self._logger)
        await learn(parts.session, event, self._logger)
        # A delivery tells which attempt it is.
        replayed = int(cast(JsonObject, event).get("attempt") or 1) > 1
        await self._processor.process(event, parts, replayed)
        # A process that serves deliveries may be frozen between them. An answer of success would
        # acknowledge what is not kept.
        if not await running.lessons.save():
            raise OSError("the store has failed")

    def asgi(self, secrets: Secrets) -> AsgiApp:
        """A receiver of deliveries, for any ASGI server or framework.

        Raises `UsageError` for a secret that is too short, such as an empty setting.
        """
        checked_keys(secrets)

        async def deliver(headers: Mapping[str, str], body: bytes) -> WebhookAnswer:
            return await self.deliver(secrets, headers, body)

        return asgi_app(deliver, self.close)
