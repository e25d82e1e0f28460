"""The start of an agent: its keys, its pins, and the parts that work together."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from ..api_errors import AgentKeysMismatch
from ..core.session import Session, SessionOptions
from ..e2ee import Principal, PrivateKeys, ids, to_base64
from ..e2ee.room import EpochMarks
from ..e2ee.trust import DirectoryKey, Notice, Trust
from ..errors import BlindpipeError, UsageError
from ..hooks import HookCaller
from ..stores.lessons import Lessons
from ..stores.pin_store import FilePins, PinStore, StoredEpochMarks
from ..transport.clock import now_ms
from ..transport.http import Call, Http
from ..transport.socket import Socket
from .approvals import Approvals
from .options import AgentOptions
from .outbox import Outbox
from .parts import AgentParts
from .tool_calls import ToolCalls


@dataclass(frozen=True, slots=True)
class Running:
    """The parts of a started agent."""

    parts: AgentParts
    trust: Trust
    lessons: Lessons


async def start(
    options: AgentOptions, hooks: HookCaller, http: Http, socket: Callable[[], Socket | None]
) -> Running:
    """Checks token and keys, and puts the parts together."""
    agent_id, seeds = options.agent_id, options.keys()
    if not seeds and options.plaintext != "allow":
        raise UsageError(
            "the agent has no key (BLINDPIPE_KEY); to speak in clear it needs plaintext='allow' "
            "(BLINDPIPE_PLAINTEXT=allow)"
        )
    me = ids.principal("agent", agent_id)
    await _publish_manifest(options, http)
    keys = await _check_keys(options, http, [seed.keys() for seed in seeds])
    store = _store_of(options)
    trust, marks = await _load_trust(options, store, me, keys)
    trust.directory(me, [_own_key(pair) for pair in keys], now_ms())
    allows_clear = options.plaintext == "allow"
    lessons = Lessons(store, trust, hooks, options.logger)

    def on_notice(notice: Notice, conversation_id: str | None) -> None:
        hooks.call(
            "key_changed",
            type=notice.kind.name.lower(),
            principal_id=ids.principal_id(notice.about),
            key_id=notice.key.hex() if notice.key else None,
            conversation_id=conversation_id,
        )

    max_age = options.max_age
    session = Session(
        SessionOptions(
            http,
            me,
            keys[0] if keys else None,
            keys,
            None,
            trust,
            marks,
            allows_clear,
            on_notice,
            lessons.soon,
            None if max_age is None else round(max_age.total_seconds() * 1000),
            lessons.handled,
        )
    )
    await lessons.resume(session)
    outbox = Outbox(http, agent_id, session, allows_clear)
    tool_calls = ToolCalls(http, agent_id, session, allows_clear)
    approvals = Approvals(session, outbox, agent_id, allows_clear)
    parts = AgentParts(agent_id, http, session, outbox, tool_calls, approvals, socket)
    return Running(parts, trust, lessons)


async def _publish_manifest(options: AgentOptions, http: Http) -> None:
    """Says to the service what this program can do."""
    if options.manifest is None:
        return
    path = f"/agents/{options.agent_id}"
    shown = await http.data(Call("GET", path))
    if shown.get("manifest") != options.manifest:
        body = {"manifest": dict(options.manifest)}
        await http.data(Call("PATCH", path, body=body, repeatable=True))


def _own_key(pair: PrivateKeys) -> DirectoryKey:
    return DirectoryKey(None, pair.public.public_key, pair.public.signing_public_key, ("bp1",))


async def _check_keys(
    options: AgentOptions, http: Http, held: Sequence[PrivateKeys]
) -> list[PrivateKeys]:
    """Checks the keys that are held. A key is never replaced in silence."""
    agent_id = options.agent_id
    for pair in held:
        mismatch = await _check_key(options, http, pair)
        if mismatch is None:
            # The key that fits signs. The others open secrets that were wrapped for them.
            return [pair, *(other for other in held if other is not pair)]
        if mismatch.params.get("expected_key_ids") and pair is held[-1]:
            raise mismatch
    if held:
        await _register_key(http, agent_id, held[0])
    return list(held)


async def _check_key(
    options: AgentOptions, http: Http, pair: PrivateKeys
) -> AgentKeysMismatch | None:
    """None if the server knows this key for the agent's. One that is about to end is renewed."""
    path, body = f"/agents/{options.agent_id}/keys/check", {"key_id": pair.key_id.hex()}
    try:
        checked = await http.data(Call("POST", path, body=body, repeatable=True))
    except AgentKeysMismatch as mismatch:
        return mismatch
    if not checked.get("current", True):
        await _renew_key(options, http, pair)
    return None


async def _renew_key(options: AgentOptions, http: Http, pair: PrivateKeys) -> None:
    """A new token ends the agent's key in a week, unless the key is registered again.

    A key that another one has replaced is not put back.
    """
    listed = await http.data(Call("GET", f"/agents/{options.agent_id}/keys"))
    if any(key["current"] for key in listed["keys"]):
        options.logger.warning("another key than this agent's is the current one: this one ends")
        return
    options.logger.warning("the agent's key was about to end and is registered again")
    await _register_key(http, options.agent_id, pair)


async def check_key_again(options: AgentOptions, http: Http, pair: PrivateKeys) -> None:
    """As at the start, for an agent that runs on. A failure is logged."""
    try:
        mismatch = await _check_key(options, http, pair)
    except BlindpipeError as error:
        options.logger.warning("the agent's key was not checked: %s", type(error).__name__)
        return
    if mismatch is not None:
        options.logger.error("the agent's key is not registered: readers refuse what it signs")


async def _register_key(http: Http, agent_id: str, pair: PrivateKeys) -> None:
    public_key = to_base64(pair.public.public_key)
    signing_public_key = to_base64(pair.public.signing_public_key)
    timestamp = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    text = "|".join(("keys-register", agent_id, public_key, signing_public_key, timestamp))
    body = {
        "public_key": public_key,
        "signing_public_key": signing_public_key,
        "timestamp": timestamp,
        "signature": to_base64(pair.sign(text.encode())),
        "schemes": ["bp1"],
    }
    path = f"/agents/{agent_id}/keys/register"
    await http.data(Call("POST", path, body=body, repeatable=True))


def _store_of(options: AgentOptions) -> PinStore | None:
    pins = options.pins
    return FilePins(pins) if isinstance(pins, str | os.PathLike) else pins


async def _load_trust(
    options: AgentOptions, store: PinStore | None, me: Principal, keys: Sequence[PrivateKeys]
) -> tuple[Trust, Mapping[str, EpochMarks]]:
    own = [pair.key_id for pair in keys]
    if store is None:
        if keys:
            text = "no pin store: this start is a first contact with everybody"
            options.logger.warning(text)
        return Trust(me, options.trust, own), {}
    stored = await store.load()
    if stored is None:
        return Trust(me, options.trust, own), {}
    return Trust(me, options.trust, own, stored["pins"]), StoredEpochMarks(stored["marks"])
