"""A person's client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from types import TracebackType
from typing import Final, Literal, Self, cast

from ..core.approvals import Approval, read_approval
from ..core.session import Session, SessionOptions
from ..core.types import ConversationInfo, Event, Grant, JsonObject, milliseconds
from ..e2ee import E2eeError, Principal, ids
from ..e2ee.room import Due, EpochMarks
from ..e2ee.trust import Notice, Trust
from ..errors import BlindpipeError, Closed, KeyUnavailable, UsageError
from ..hooks import HookCaller
from ..stores.device_store import StoreOwner
from ..stores.pin_store import StoredEpochMarks
from ..transport.clock import full_jitter, now_ms
from ..transport.http import Call
from ..transport.socket import Frame
from .account import Account, StoredSession
from .agents import Agents
from .approvals import ApprovalRequest, approval_request
from .contacts import Contacts
from .conversation import Conversation, ConversationParts
from .devices import DeviceKeys, Devices
from .event_reader import EventReader
from .events import ClientEvent, MessageEvent, OtherEvent, ToolRequestEvent
from .feed import Feed
from .keeper import Keeper
from .options import ClientOptions
from .passkeys import Passkeys
from .rotation import NotGiven, Rotator
from .sessions import Sessions
from .tool_requests import ConsentKeeper, ToolRequest

OWN_LIST: Final = "own_list"
"""The frame of this client that stands for the reading of its person's own keys."""
FIRST_READ_WAIT_MS: Final = 1_000
MAX_READ_WAIT_MS: Final = 30_000
ROTATED_AFTER_REVOCATION_MS: Final = 7 * 24 * 3_600_000
"""A removed device may know the secrets of the conversations that were active in this time."""


class Client(Passkeys, Contacts):
    """A signed-in person on one device. `async with` closes it."""

    def __init__(self, options: ClientOptions) -> None:
        self._options = options
        self._hooks = HookCaller(options.hooks, options.logger)
        if options.store is not None and (options.pins is not None or options.marks):
            raise UsageError("pins and marks come from the store, or from the options")
        kept = options.consents or options.store
        self._consents = ConsentKeeper(options.tools, kept, self._hooks)
        self._keeper = Keeper(options.store, self._consents, self._hooks, options.logger)
        self._marks: Mapping[str, EpochMarks] = options.marks
        self._trust: Trust | None = None
        self._session: Session | None = None
        self._parts: ConversationParts | None = None
        self._feed: Feed | None = None
        self.account = Account(
            options.url,
            self._hooks,
            options.ssl_context,
            allow_http=options.allow_http,
            on_session=self._keep_session,
        )
        self._http = self.account.http
        self.agents = Agents(self.account.http)
        self.sessions = Sessions(self.account)
        self.devices = Devices(
            self.account,
            self._hold_keys,
            self._keeper.save_device,
            self._rotate_recent,
            self._introduced_by,
            self._consents,
        )

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connections. The device's store has all of its knowledge then."""
        await self._keeper.save()
        await self.account.http.close()

    @classmethod
    async def _sign_in(cls, options: ClientOptions, path: str, body: JsonObject) -> Self:
        client = cls(options)
        async with client._closed_by_failure():
            before = await client._keeper.stored_session()
            device = {
                "device_id": options.device_id or (before and before.device_id) or ids.new_ulid(),
                "device_name": options.device_name,
                "platform": options.platform,
            }
            told = {name: value for name, value in device.items() if value}
            await client.account.sign_in(path, body | told)
            await client._begin()
            await client._keeper.save_device()
        return client

    @asynccontextmanager
    async def _closed_by_failure(self) -> AsyncIterator[None]:
        try:
            yield
        except BaseException:
            await self.account.http.close()
            raise

    async def _keep_session(self, session: StoredSession) -> None:
        self._options.on_session(session)
        await self._keeper.keep_session(session)

    async def _begin(self) -> None:
        """Takes over what earlier runs have kept, now that it is known whose it is."""
        if self._options.store is None:
            return
        owner = StoreOwner(self.account.user_id, self.account.device_id)
        stored = await self._keeper.load(owner)
        pins = stored["pins"] if stored else None
        self._trust = Trust(self.me, self._options.trust, (), pins)
        self._marks = StoredEpochMarks(stored["marks"]) if stored else {}
        await self._keeper.learns(self._trust).resume(self.session)
        if keys := self._keeper.keys:
            self._hold_keys(keys)

    @classmethod
    async def resume(cls, options: ClientOptions, session: StoredSession | None = None) -> Client:
        """Goes on with the sign-in of an earlier run, which the `store` has kept.

        Raises `Closed` if it has ended, or if there is none. Without a store, `session` is what
        `on_session` has kept, and `devices.use_keys` takes the keys of that run.
        """
        client = await cls.resume_offline(options, session)
        async with client._closed_by_failure():
            if not await client.account.renew():
                raise Closed("the sign-in has ended")
        return client

    @classmethod
    async def resume_offline(
        cls, options: ClientOptions, session: StoredSession | None = None
    ) -> Client:
        """Goes on like `resume`, and asks the service nothing.

        It is for a program that shows what it has kept while the service is away. The first call
        renews the sign-in. `events` raises `Closed` if it has ended.
        """
        client = cls(options)
        async with client._closed_by_failure():
            kept = await client._keeper.stored_session()
            session = client._keeper.session = session or kept
            if session is None:
                raise Closed("nobody has signed in yet")
            client.account.resume_offline(session)
            await client._begin()
        return client

    @classmethod
    async def _public(cls, options: ClientOptions, path: str, body: JsonObject) -> JsonObject:
        async with cls(options) as client:
            call = Call("POST", path, body=body, public=True)
            answered: JsonObject = await client.account.http.data(call)
            return answered

    @property
    def me(self) -> Principal:
        """This person, as the encryption names it."""
        return ids.principal("user", self.account.user_id)

    @property
    def user_id(self) -> str:
        """This person's id."""
        return self.account.user_id

    @property
    def trust(self) -> Trust:
        """The keys of others that this device has learned; `store()` gives what to keep."""
        if self._trust is None:
            self._trust = Trust(self.me, self._options.trust, (), self._options.pins)
        return self._trust

    def _hold_keys(self, keys: DeviceKeys) -> None:
        self._warn_without_store()
        opening = keys.opening
        self.trust.add_own(key.key_id for key in opening)
        before, self._session = self._session, self._make_session(keys)
        if before is not None:
            self._session.take_from(before)
        if self._keeper.lessons is not None:
            self._keeper.lessons.session = self._session
        self._keeper.note_keys(keys)
        rotator = Rotator(self._session, keys.signer, self._on_not_given, self._on_not_rotated)
        self._parts = ConversationParts(
            self._session,
            rotator,
            self._send_frame,
            self._keeper.clear,
            self._options.searchable,
        )

    def _send_frame(self, frame: Frame) -> bool:
        return self._feed is not None and self._feed.send(frame)

    def _on_not_given(self, conversation_id: str, who: NotGiven) -> None:
        kind, id = who.because.name.lower(), ids.principal_id(who.principal)
        told = {"principal_id": id, "key_id": None, "conversation_id": conversation_id}
        self._hooks.call("key_changed", type=kind, **told)
        self._options.logger.warning("a member of %s was given nothing", conversation_id)

    def _on_not_rotated(self, conversation_id: str, due: Due | None) -> None:
        self._hooks.call("not_rotated", conversation_id=conversation_id, reason=due or "asked")
        text = "%s has no fresh secret: the server refuses it"
        self._options.logger.warning(text, conversation_id)

    def _make_session(self, keys: DeviceKeys | None) -> Session:
        return Session(
            SessionOptions(
                self.account.http,
                self.me,
                keys.signer if keys else None,
                keys.opening if keys else (),
                self.account.device_id,
                self.trust,
                self._marks,
                False,
                self._on_notice,
                self._on_trust_changed,
                on_handled=self._keeper.showing,
            )
        )

    def _on_trust_changed(self) -> None:
        self._keeper.soon()
        self._options.on_trust_changed()

    def _on_notice(self, notice: Notice, conversation_id: str | None) -> None:
        self._hooks.call(
            "key_changed",
            type=notice.kind.name.lower(),
            principal_id=ids.principal_id(notice.about),
            key_id=notice.key.hex() if notice.key else None,
            conversation_id=conversation_id,
        )

    async def _introduced_by(self, device_id: str) -> set[str]:
        await self.session.directory.refresh(self.me)
        return self.trust.introduced_by(self.me, device_id, now_ms())

    async def _rotate_recent(self) -> None:
        """Fresh secrets where a device that was removed could read what is sent now."""
        self.session.needs_fresh_secret()
        since = now_ms() - ROTATED_AFTER_REVOCATION_MS
        try:
            async for info in self.conversations():
                if milliseconds(info["last_activity_at"]) < since:
                    return
                if info["epoch"] > 0:
                    await self._rotate_away(info["conversation_id"])
        except BlindpipeError:
            # The next send rotates, or fails.
            self._options.logger.warning("some conversations have no fresh secret yet")

    async def _rotate_away(self, conversation_id: str) -> None:
        if self._parts is None:
            return
        try:
            await self._parts.rotator.rotate(conversation_id)
        except (BlindpipeError, KeyUnavailable):
            self._options.logger.warning("%s has no fresh secret yet", conversation_id)

    @property
    def session(self) -> Session:
        """The session knows the conversations; without keys it opens nothing."""
        if self._session is None:
            self._session = self._make_session(None)
        return self._session

    def conversation(self, id: str) -> Conversation:
        """A conversation by its id. Raises `KeyUnavailable` before the device has keys."""
        if self._parts is None:
            raise KeyUnavailable("this device has no keys: devices.create() or devices.restore()")
        return Conversation(id, self._parts)

    def _with_keys(self, id: str) -> Conversation | None:
        return self.conversation(id) if self._parts else None

    async def conversations(self) -> AsyncIterator[ConversationInfo]:
        """Latest activity first."""
        async for info in self.account.http.pages("/conversations"):
            yield info

    async def _open(self, what: JsonObject) -> Conversation:
        info = await self.account.http.data(Call("POST", "/conversations", body=what))
        return self.conversation(info["conversation_id"])

    async def open_agent(self, agent_id: str, *, key_id: str | None = None) -> Conversation:
        """Opens the conversation with an agent, or finds it.

        `key_id` is the key of a link from the developer's own site: it verifies the agent. While
        the service does not list that key, all keys that nobody verified wait.
        """
        if key_id is not None:
            agent = ids.principal("agent", agent_id)
            notices = self.trust.link(agent, bytes.fromhex(key_id), now_ms())
            self._compared(agent, notices)
        return await self._open({"type": "agent", "agent_id": agent_id})

    async def open_direct(self, user_id: str) -> Conversation:
        """Opens the conversation with a person, or finds it."""
        return await self._open({"type": "direct", "user_id": user_id})

    async def open_group(self, member_ids: Sequence[str], *, title: str = "") -> Conversation:
        """Opens a new group."""
        titled = {"title": title} if title else {}
        return await self._open({"type": "group", "member_ids": list(member_ids), **titled})

    async def revoke_grant(self, grant_id: str) -> None:
        """Takes a grant back at once, with what this device remembers of it."""
        revoked: Grant = await self.account.http.data(Call("DELETE", f"/grants/{grant_id}"))
        await self._consents.revoked(revoked)

    async def approvals(
        self, state: Literal["open", "closed"] = "open"
    ) -> AsyncIterator[ApprovalRequest]:
        """What this person is asked to approve in all conversations, the newest first."""
        async for approval in self.account.http.pages("/approvals", {"state": state}):
            yield await self.approval_request(cast(Approval, approval))

    async def approval(self, approval_id: str) -> ApprovalRequest:
        """An approval with its question."""
        return await self.approval_request(await read_approval(self.session, approval_id))

    async def approval_request(self, approval: Approval) -> ApprovalRequest:
        """Opens the question of an approval, such as that of an event."""
        conversation = self.conversation(approval["conversation_id"])
        return await approval_request(self.session, conversation, approval)

    def _warn_without_store(self) -> None:
        if self._options.store is not None:
            return
        if self._options.pins is None:
            text = "no store and no pins: this start is a first contact with everybody"
            self._options.logger.warning(text)
        if self._options.tools and self._options.consents is None:
            text = "no store of consents: what was executed is known until the end of the program"
            self._options.logger.warning(text)

    async def events(self) -> AsyncGenerator[ClientEvent, None]:
        """Events, over a socket that reconnects.

        Those of a conversation come in their order. While one waits for a read of the service,
        those of other conversations come. An event is acknowledged when it and all before it were
        shown, and the next one is asked for. Close the iterator (`contextlib.aclosing`) to leave
        before the end.
        """
        reader = EventReader(
            lambda: self.session,
            self._hooks,
            self._options.logger,
            self._consents,
            self._with_keys,
            self._send_frame,
        )
        feed = Feed(
            self.account,
            self._hooks,
            self._keeper,
            missed_events=lambda: self.session.missed_events(),
            holders=self.devices.online,
            admit=reader.admit,
            read=lambda frame: self._read(reader, frame),
            shown=self._shown,
        )
        self._feed = feed
        # In the line of this person's keys, so that it holds up no conversation.
        mine = {"user_id": self.user_id}
        first = {"type": OWN_LIST, "event": "key.device_added", "data": mine}
        async with aclosing(feed.events(first)) as read:
            async for events in read:
                for event in events:
                    self._note(event)
                    yield event

    def _note(self, event: ClientEvent) -> None:
        """A message that is shown is not shown again."""
        opened = event.received.opened if isinstance(event, MessageEvent) else None
        if isinstance(event, MessageEvent) and opened is not None and opened.encrypted:
            self.session.remember(event.received.message, opened.sent_at)

    def _shown(self, events: Sequence[ClientEvent]) -> Awaitable[None] | None:
        """An unknown tool is answered, while other conversations go on."""
        self._keeper.shown()
        requests = [event.request for event in events if isinstance(event, ToolRequestEvent)]
        return self._answer_unknown(requests[0]) if requests else None

    async def _read(self, reader: EventReader, frame: Frame) -> Sequence[ClientEvent]:
        """The events of a frame. A read that fails for now is made again, or they were lost."""
        failures, is_event = 0, frame["type"] == "event"
        if frame["type"] == OWN_LIST:
            await self._check_own_list()
            return []
        while True:
            try:
                return await reader.read(frame)
            except BlindpipeError as error:
                if error.status == 401:
                    raise
                kind = type(error).__name__
                self._options.logger.warning("an event could not be looked into: %s", kind)
                if not (is_event and error.retryable):
                    return [OtherEvent(cast(Event, frame))] if is_event else []
            await asyncio.sleep(full_jitter(failures, FIRST_READ_WAIT_MS, MAX_READ_WAIT_MS) / 1000)
            failures += 1

    async def _answer_unknown(self, request: ToolRequest) -> None:
        """An agent does not wait for a tool that nobody has."""
        try:
            await request.answer_unknown()
        except (BlindpipeError, E2eeError, KeyUnavailable) as error:
            kind = type(error).__name__
            self._options.logger.warning("an unknown tool was not answered: %s", kind)

    async def _check_own_list(self) -> None:
        """A device on one's own list that one did not add is an alarm, at every start."""
        if self._parts is None:
            return
        try:
            await self.session.directory.refresh(self.me)
        except BlindpipeError as error:
            kind = type(error).__name__
            self._options.logger.warning("the list of devices was not read: %s", kind)
