"""A person's client."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Literal, cast

from ..core.approvals import Approval, read_approval
from ..core.session import Session, SessionOptions
from ..core.types import ConversationInfo, Event, Grant, JsonObject, milliseconds
from ..e2ee import E2eeError, Principal, ids
from ..e2ee.consent import Tool
from ..e2ee.room import Due, EpochMarks
from ..e2ee.trust import Notice, Policy, StoredPins, Trust
from ..errors import BlindpipeError, Closed, KeyUnavailable, UsageError
from ..hooks import HookCaller, Hooks
from ..transport.clock import full_jitter, now_ms
from ..transport.http import Call
from ..transport.socket import Frame
from .account import Account, StoredSession
from .agents import Agents
from .approvals import ApprovalRequest, approval_request
from .calls import AccountCalls
from .conversation import Conversation, ConversationParts
from .devices import DeviceKeys, Devices
from .event_reader import EventReader
from .events import ClientEvent, OtherEvent, ToolRequestEvent
from .feed import Feed
from .rotation import NotGiven, Rotator
from .sessions import Sessions
from .tool_requests import ConsentKeeper, ConsentStore, ToolRequest

FIRST_READ_WAIT_MS: Final = 1_000
MAX_READ_WAIT_MS: Final = 30_000
ROTATED_AFTER_REVOCATION_MS: Final = 7 * 24 * 3_600_000
"""A removed device may know the secrets of the conversations that were active in this time."""


@dataclass(frozen=True)
class ClientOptions:
    """The settings of a person's client."""

    url: str
    device_id: str | None = None
    """This device's own id, which must outlive a reinstallation; a new one without it."""
    device_name: str | None = None
    platform: str | None = None
    trust: Policy = "tofu"
    pins: StoredPins | None = None
    """Pins of an earlier run."""
    marks: Mapping[str, EpochMarks] = field(default_factory=dict)
    """Marks of an earlier run."""
    on_learned: Callable[[], None] = lambda: None
    """Pins or marks have changed: keep what `trust.store()` and `session.marks()` give now."""
    on_session: Callable[[StoredSession], None] = lambda session: None
    """The sign-in, or its renewal: keep it, and `Client.resume` goes on with it."""
    tools: Mapping[str, Tool] = field(default_factory=dict)
    """The tools of this device, by name. A request for any other is not for it."""
    consents: ConsentStore | None = None
    """Keeps which requests were begun and approved; in memory without it."""
    searchable: bool = False
    """Sends tell the service keyed hashes of their words, and `Conversation.search` finds them.

    Then the service sees which messages of a conversation share a word, and how often.
    """
    hooks: Hooks | None = None
    logger: logging.Logger = logging.getLogger("blindpipe")
    ssl_context: ssl.SSLContext | None = None
    allow_http: bool = False
    """Takes an `http://` address of another machine, to which the token goes in clear."""


class Client(AccountCalls):
    """A signed-in person on one device. `async with` closes it."""

    def __init__(self, options: ClientOptions) -> None:
        self._options = options
        self._hooks = HookCaller(options.hooks, options.logger)
        self._consents = ConsentKeeper(options.tools, options.consents, self._hooks)
        self._trust: Trust | None = None
        self._session: Session | None = None
        self._parts: ConversationParts | None = None
        self._feed: Feed | None = None
        self.account = Account(
            options.url,
            self._hooks,
            options.ssl_context,
            allow_http=options.allow_http,
            on_session=options.on_session,
        )
        self._http = self.account.http
        self.agents = Agents(self.account.http)
        self.sessions = Sessions(self.account)
        self.devices = Devices(
            self.account,
            self._hold_keys,
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
        """Closes the connections."""
        await self.account.http.close()

    @classmethod
    async def _sign_in(cls, options: ClientOptions, path: str, body: JsonObject) -> Client:
        client = cls(options)
        device = {
            "device_id": options.device_id or ids.new_ulid(),
            "device_name": options.device_name,
            "platform": options.platform,
        }
        told = {name: value for name, value in device.items() if value}
        await client.account.sign_in(path, body | told)
        return client

    @classmethod
    async def resume(cls, options: ClientOptions, session: StoredSession) -> Client:
        """Goes on with the sign-in of an earlier run, which `on_session` has kept.

        Raises `Closed` if it has ended. `devices.hold` takes the keys of that run.
        """
        client = cls(options)
        try:
            is_live = await client.account.resume(session)
        except BaseException:
            await client.close()
            raise
        if not is_live:
            await client.close()
            raise Closed("the sign-in has ended")
        return client

    @classmethod
    async def login(
        cls, options: ClientOptions, *, email: str, password: str, turnstile_token: str
    ) -> Client:
        """Signs in with the account's password."""
        body = {
            "email": email,
            "account_password": password,
            "turnstile_token": turnstile_token,
        }
        return await cls._sign_in(options, "/auth/login", body)

    @classmethod
    async def login_with_code(cls, options: ClientOptions, *, email: str, code: str) -> Client:
        """Signs in with a mailed code."""
        return await cls._sign_in(options, "/auth/login-code", {"email": email, "code": code})

    @classmethod
    async def register(
        cls,
        options: ClientOptions,
        *,
        email: str,
        code: str,
        password: str,
        display_name: str,
        turnstile_token: str,
        locale: str = "en",
    ) -> Client:
        """Makes an account, with a mailed code."""
        body = {
            "email": email,
            "code": code,
            "account_password": password,
            "display_name": display_name,
            "device_locale": locale,
            "turnstile_token": turnstile_token,
        }
        return await cls._sign_in(options, "/auth/register", body)

    @classmethod
    async def begin_passkey_login(cls, options: ClientOptions) -> JsonObject:
        """The challenge of a sign-in; `public_key` is for `navigator.credentials.get`."""
        return await cls._public(options, "/auth/passkey/begin", {})

    @classmethod
    async def login_with_passkey(
        cls, options: ClientOptions, *, challenge_id: str, credential: Mapping[str, Any]
    ) -> Client:
        """Signs in with the credential that answers a challenge, as WebAuthn's JSON."""
        body = {"challenge_id": challenge_id, "credential": dict(credential)}
        return await cls._sign_in(options, "/auth/passkey/complete", body)

    @classmethod
    async def reset_password(
        cls, options: ClientOptions, *, email: str, code: str, new_password: str
    ) -> JsonObject:
        """Sets a password by a code that was mailed for the scene `reset`. Every session ends."""
        body = {"email": email, "code": code, "new_account_password": new_password}
        return await cls._public(options, "/auth/reset-password", body)

    @classmethod
    async def _public(cls, options: ClientOptions, path: str, body: JsonObject) -> JsonObject:
        async with cls(options) as client:
            call = Call("POST", path, body=body, public=True)
            answered: JsonObject = await client.account.http.data(call)
            return answered

    @classmethod
    async def send_code(
        cls,
        options: ClientOptions,
        *,
        email: str,
        scene: Literal["register", "login", "reset"],
        turnstile_token: str,
    ) -> None:
        """Mails a code."""
        body = {"email": email, "scene": scene, "turnstile_token": turnstile_token}
        await cls._public(options, "/auth/send-code", body)

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
        self.trust.hold(key.key_id for key in opening)
        self._session = self._make_session(keys)
        rotator = Rotator(self._session, keys.signer, self._on_not_given, self._on_not_rotated)
        self._parts = ConversationParts(
            self._session, rotator, self._send_frame, self._options.searchable
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
                self._options.marks,
                False,
                self._on_notice,
                self._options.on_learned,
            )
        )

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

    def confirm(self, principal: Principal, key_id: str) -> None:
        """The tap: this person takes the key for that principal's."""
        if not self.trust.confirm(principal, bytes.fromhex(key_id), now_ms()):
            raise UsageError("this key was never shown")
        self._reconsider(principal)

    def verify(self, principal: Principal, number: str) -> None:
        """People have compared these digits: all keys of theirs that they stand for are verified.

        Raises `UsageError` if they are not, or no longer, the digits of `safety_number()`.
        """
        notices = self.trust.verify_number(principal, number, now_ms())
        if notices is None:
            raise UsageError("these are not the digits of now")
        self._compared(principal, notices)

    def verify_key(self, principal: Principal, key_id: str) -> None:
        """People have compared this key alone, for example by its id.

        All other keys of theirs wait from now on, but for those that it introduced. The hook
        `key_changed` names them.
        """
        notices = self.trust.verify(principal, bytes.fromhex(key_id), now_ms())
        if notices is None:
            raise UsageError("this key was never shown, or it is retired")
        self._compared(principal, notices)

    def _compared(self, principal: Principal, notices: Iterable[Notice]) -> None:
        for notice in notices:
            self._on_notice(notice, None)
        self._reconsider(principal)

    def _reconsider(self, principal: Principal) -> None:
        self.session.reconsider(principal)
        self._options.on_learned()

    async def safety_number(self, principal: Principal) -> str:
        """60 digits to compare with somebody: of all accepted keys of both.

        The service lists the keys anew. Where a side has no accepted ones, those that wait count.
        """
        for who in (self.me, principal):
            await self.session.directory.refresh(who)
        number = self.trust.safety_number(principal, now_ms())
        if number is None:
            raise E2eeError("unknown_sender_key")
        return number

    async def reauth(
        self,
        *,
        account_password: str | None = None,
        code: str | None = None,
        challenge_id: str | None = None,
        credential: Mapping[str, Any] | None = None,
    ) -> None:
        """Proves the person's identity anew, by the password, a mailed code or a passkey.

        For ten minutes this session may then do what the service refuses with `ReauthRequired`.
        """
        given = {
            "account_password": account_password,
            "code": code,
            "challenge_id": challenge_id,
            "credential": credential,
        }
        body = {name: value for name, value in given.items() if value is not None}
        await self.account.http.data(Call("POST", "/auth/reauth", body=body))

    async def grants(self) -> AsyncIterator[Grant]:
        """The grants that agents have, or ask for."""
        async for grant in self.account.http.pages("/grants"):
            yield grant

    async def decide_grant(self, grant_id: str, decision: Literal["approve", "deny"]) -> Grant:
        """This person's answer to an agent's request."""
        path, body = f"/grants/{grant_id}/decision", {"decision": decision}
        grant: Grant = await self.account.http.data(Call("POST", path, body=body))
        return grant

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
        if self._options.pins is None:
            text = "no pins are given: this start is a first contact with everybody"
            self._options.logger.warning(text)
        if self._options.tools and self._options.consents is None:
            text = "no store of consents: what was executed is known until the end of the program"
            self._options.logger.warning(text)

    async def events(self) -> AsyncGenerator[ClientEvent, None]:
        """Events, over a socket that reconnects.

        An event is acknowledged when the next one is asked for. Close the iterator
        (`contextlib.aclosing`) to leave before the end.
        """
        feed = Feed(
            self.account,
            self._hooks,
            missed_events=lambda: self.session.missed_events(),
            holders=self.devices.online,
        )
        self._feed = feed
        reader = EventReader(
            lambda: self.session, self._hooks, self._consents, self._with_keys, feed.send
        )
        await self._check_own_list()
        async with aclosing(feed.frames()) as frames:
            async for frame in frames:
                for event in await self._read(reader, frame):
                    yield event
                    if isinstance(event, ToolRequestEvent):
                        await self._answer_unknown(event.request)

    async def _read(self, reader: EventReader, frame: Frame) -> Sequence[ClientEvent]:
        """The events of a frame. A read that fails for now is made again, or they were lost."""
        failures, is_event = 0, frame["type"] == "event"
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
