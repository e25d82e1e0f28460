"""An active server forges, moves and repeats consent, answers and tool requests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from attacker import (
    Attacker,
    Json,
    Victim,
    again,
    attacked_person,
    attacking,
    changed,
    flipped,
    newest,
)
from live import (
    MANIFEST,
    TOOLS,
    answer_to,
    collect,
    decide_until_answered,
    executing,
    grant,
    running,
    until,
)

from blindpipe import Agent, ApiError, CallResult, Context, NotApproved, ToolRequest, UsageError
from blindpipe.client import Sensitivity, StoredConsents, Tool, ToolRequestEvent
from blindpipe.e2ee.consent import Consents
from blindpipe.e2ee.ids import new_ulid
from blindpipe.testing import DevCluster, TestUser
from blindpipe.transport.socket import Frame


def _asks_for_mails(agent: Agent, results: list[CallResult]) -> None:
    @agent.on("message")
    async def ask(ctx: Context) -> None:
        mail = {"to": "team@example.com", "text": ctx.text}
        results.append(await ctx.call("send_email", "notification:send", mail))
        await ctx.reply("done")


@pytest.mark.parametrize("how", ["by the state", "by the event", "by another consent"])
async def test_an_agent_believes_no_consent_that_the_server_made(
    cluster: DevCluster, how: str
) -> None:
    ada, results = await cluster.user("ada", tools=TOOLS), list[CallResult]()
    async with attacking(cluster) as attacker:
        made = await cluster.agent("asker", ada.client, manifest=MANIFEST)
        options = replace(made, url=attacker.url, ssl_context=None)
        agent = Agent(options)
        _asks_for_mails(agent, results)
        async with running(agent):
            conversation = await ada.client.open_agent(agent.agent_id)
            await grant(ada, conversation, options)

            async def consent(request: ToolRequest) -> None:
                await request.approve()
                await request.execute(lambda _tool, _mail: "sent")

            await decide_until_answered(ada, lambda: conversation.send("with consent"), consent)
            true = next(f for f in attacker.seen if f.get("event") == "artifact_response")
            _forge(attacker, how, true["data"]["payload"])
            await decide_until_answered(ada, lambda: conversation.send("?"), ToolRequest.deny)
    assert [(result.status, result.reason) for result in results] == [
        ("executed", None),
        ("failed", "unproven"),
    ]
    await ada.client.close()


def _forge(attacker: Attacker, how: str, other: Json) -> None:
    """The server says `executed` from now on."""
    executed: Json = {"status": "executed", "reason": None}

    def on_answer(_method: str, path: str, data: Any) -> Any:
        is_state = path.endswith("/artifact-requests")
        return {**data, **executed, "payload": None} if is_state else data

    def on_frame(frame: Frame) -> Iterable[Frame]:
        if frame.get("event") != "artifact_response":
            return (frame,)
        moved = {"payload": other} if how == "by another consent" else {}
        return (changed(frame, **executed, **moved),)

    if how == "by the state":
        attacker.on_answer = on_answer
    else:
        attacker.on_frame = on_frame


async def test_an_outcome_whose_event_is_dropped_is_read(
    cluster: DevCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("blindpipe.agent.tool_calls.LOOK_INTERVAL_SECONDS", 0.1)
    ada, results = await cluster.user("ada", tools=TOOLS), list[CallResult]()
    async with attacking(cluster) as attacker:
        made = await cluster.agent("asker", ada.client, manifest=MANIFEST)
        options = replace(made, url=attacker.url, ssl_context=None)
        agent = Agent(options)
        _asks_for_mails(agent, results)
        attacker.on_frame = lambda f: () if f.get("event") == "artifact_response" else (f,)
        async with running(agent):
            conversation = await ada.client.open_agent(agent.agent_id)
            await grant(ada, conversation, options)
            say = partial(conversation.send, "dropped")
            await decide_until_answered(ada, say, executing(lambda _tool, _mail: "sent"))
    assert [(result.status, result.result) for result in results] == [("executed", "sent")]
    await ada.client.close()


@asynccontextmanager
async def _device(
    cluster: DevCluster,
) -> AsyncIterator[tuple[TestUser, Attacker, Victim, Any, list[object]]]:
    """A person behind the attacker, whose agent asks for a mail at each message."""
    victim, mails = Victim(), list[object]()
    async with (
        attacking(cluster) as attacker,
        attacked_person(cluster, attacker, "ada", victim, tools=TOOLS) as ada,
    ):
        options = await cluster.agent("asker", ada.client, manifest=MANIFEST)
        agent = Agent(options)
        _asks_for_mails(agent, [])
        async with running(agent):
            conversation = await ada.client.open_agent(agent.agent_id)
            await grant(ada, conversation, options)
            yield ada, attacker, victim, conversation, mails


def _is_request(frame: Frame) -> bool:
    return frame.get("event") == "artifact_request"


def _another(id: str) -> str:
    return id[:-1] + ("1" if id.endswith("0") else "0")


REQUEST_CHANGES: dict[str, Any] = {
    "its tool": lambda _call: {"tool": "delete_everything"},
    "its scope": lambda _call: {"scope": "files:write"},
    "its id": lambda call: {"request_id": _another(call["request_id"])},
    "its arguments": lambda call: {"payload": flipped(call["payload"])},
    "its arguments, by clear ones": lambda _call: {"payload": {"arguments": {"to": "eve"}}},
}


async def test_a_device_executes_no_altered_request_and_a_true_one_once(
    cluster: DevCluster,
) -> None:
    async with _device(cluster) as (ada, attacker, victim, conversation, mails):

        def on_frame(frame: Frame) -> Iterable[Frame]:
            if not _is_request(frame):
                return (frame,)
            altered = [changed(frame, **row(frame["data"])) for row in REQUEST_CHANGES.values()]
            return (*altered, frame, again(frame), again(frame))

        attacker.on_frame = on_frame
        await decide_until_answered(ada, lambda: conversation.send("hello"), _executing(mails))
    assert mails == [{"to": "team@example.com", "text": "hello"}]
    assert victim.faults == [*["bad_ciphertext"] * 4, "clear"]


async def test_a_device_executes_no_request_that_was_held_back(
    cluster: DevCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with _device(cluster) as (ada, attacker, victim, conversation, mails):
        held: list[Frame] = []

        def on_frame(frame: Frame) -> Iterable[Frame]:
            if not _is_request(frame):
                return (frame,)
            held.append(frame)
            return ()

        async def late() -> None:
            await until(lambda: held)
            now = time.time_ns
            monkeypatch.setattr(time, "time_ns", lambda: now() + 6 * 60 * 10**9)
            await attacker.push(held[0])
            await until(lambda: victim.faults)
            assert not mails
            monkeypatch.undo()
            await attacker.push(again(held[0]))

        async def say() -> None:
            await conversation.send("hello")
            tasks.append(asyncio.create_task(late()))

        attacker.on_frame, tasks = on_frame, list[asyncio.Task[None]]()
        await decide_until_answered(ada, say, _executing(mails))
        await tasks[0]
    assert (len(mails), victim.faults) == (1, ["stale"]), "in time, it would have been"


class _Kept:
    """A device's store, which outlives its program."""

    def __init__(self) -> None:
        self.kept: StoredConsents | None = None

    async def load_consents(self) -> StoredConsents | None:
        return self.kept

    async def add_consents(self, consents: StoredConsents) -> None:
        begun, remembered = consents["begun"], consents["remembered"]
        assert len(begun) + len(remembered) <= 1, "what was kept is not given again"
        if self.kept is not None:
            begun = {**self.kept["begun"], **begun}
            remembered = {**self.kept["remembered"], **remembered}
        self.kept = {"begun": begun, "remembered": remembered}


async def test_a_device_asks_by_its_own_table_whatever_the_server_calls_harmless(
    cluster: DevCluster,
) -> None:
    victim, decisions, said = Victim(), list[str](), dict[str, Any]()
    scope, kept = "notification:send", _Kept()
    tools = {
        "send_email": Tool(scope, Sensitivity.LOW),
        "wipe": Tool(scope, Sensitivity.HIGH),
        "read_files": Tool("files:read", Sensitivity.LOW),
    }
    tools["hint"] = Tool(scope, Sensitivity.LOW)
    named = [{"name": name, "scope": scope} for name in (*tools, "beep")]
    manifest = {**MANIFEST, "tools": named}

    def on_frame(frame: Frame) -> Iterable[Frame]:
        return (changed(frame, **said) if _is_request(frame) else frame,)

    async def decide(request: ToolRequest) -> None:
        decision = await request.decide()
        ran: list[str] = []
        if decision == "ask":
            with pytest.raises(NotApproved):
                await request.execute(lambda tool, _: ran.append(tool))
            assert not ran, "nobody has approved it"
            is_remembered = (request.call["tool"], said["sensitivity"]) == ("send_email", "low")
            await (request.remember() if is_remembered else request.approve())
        if decision == "unable" and request.call["tool"] in tools:
            with pytest.raises(NotApproved):
                await request.execute(lambda tool, _: ran.append(tool))
            await request.deny()
        else:
            await request.execute(lambda tool, _: ran.append(tool))
        assert ran == ([] if decision == "unable" else [request.call["tool"]])
        decisions.extend((decision, await request.decide()))

    async with (
        attacking(cluster) as attacker,
        attacked_person(cluster, attacker, "ada", victim, tools=tools, consents=kept) as ada,
    ):
        options = await cluster.agent("asker", ada.client, manifest=manifest)
        agent = Agent(options)

        @agent.on("message")
        async def call(ctx: Context) -> None:
            result = await ctx.call(ctx.text, scope, {})
            await ctx.reply(result.status)

        attacker.on_frame = on_frame
        async with running(agent):
            conversation = await ada.client.open_agent(agent.agent_id)
            await grant(ada, conversation, options)
            harmless: Json = {"sensitivity": "low", "prompt_required": False}
            harmless["silent_devices"] = ["*"]
            rows = [
                # The person's approval on this device counts, not the server's grant.
                ("send_email", harmless, "ask"),
                ("send_email", harmless, "execute"),
                # An approval is of a tool, not of all that have its scope; and once, unless the
                # person chose to be asked no more.
                ("hint", harmless, "ask"),
                ("hint", harmless, "ask"),
                # The device's own table says that this one always asks.
                ("wipe", harmless, "ask"),
                # The server may raise the harm.
                ("send_email", {"sensitivity": "high"}, "ask"),
                # Not with this scope, and no tool of this device.
                ("read_files", harmless, "unable"),
                ("beep", harmless, "unable"),
            ]
            for tool, lie, _ in rows:
                said.clear()
                said.update(lie)
                await decide_until_answered(ada, partial(conversation.send, tool), decide)
    assert decisions == [each for *_, wanted in rows for each in (wanted, "repeated")]
    # Begun and approved calls outlive the program.
    later = Consents.stored(tools, kept.kept).store()
    assert (len(later["begun"]), len(later["remembered"])) == (len(rows), 1)


def _executing(mails: list[object]) -> Callable[[ToolRequest], Awaitable[None]]:
    return executing(lambda _tool, mail: mails.append(mail))


@asynccontextmanager
async def _asking(
    cluster: DevCluster, attacker: Attacker, owner: TestUser, victim: Victim, answers: list[str]
) -> AsyncIterator[Agent]:
    """An agent behind the attacker that asks each text as a question."""
    made = await cluster.agent("asker", owner.client)
    options = replace(made, url=attacker.url, ssl_context=None, hooks=victim.hooks)
    agent = Agent(options)

    @agent.on("message")
    async def ask(ctx: Context) -> None:
        await ctx.ask(ctx.text, tag="files", choices=["Yes"])

    @agent.on_answer("files")
    async def answered(ctx: Context) -> None:
        answers.append(f"{ctx.answer.question} {ctx.answer.choice}")

    async with running(agent):
        await owner.client.open_agent(agent.agent_id)
        yield agent


async def _request(user: TestUser, act: Callable[[], Awaitable[object]]) -> ToolRequest:
    """The first tool request after `act`."""
    events = await collect(user, act, lambda all: isinstance(all[-1], ToolRequestEvent))
    assert isinstance(events[-1], ToolRequestEvent)
    return events[-1].request


async def test_a_request_to_another_person_is_neither_run_nor_remembered(
    cluster: DevCluster,
) -> None:
    bob, results = await cluster.user("bob", tools=TOOLS), list[CallResult]()
    async with (
        attacking(cluster) as attacker,
        attacked_person(cluster, attacker, "ada", Victim(), tools=TOOLS) as ada,
    ):
        options = await cluster.agent("asker", ada.client, manifest=MANIFEST)
        agent = Agent(options)
        _asks_for_mails(agent, results)
        async with running(agent):
            for person in (ada, bob):
                await person.client.open_agent(agent.agent_id)
            group = await ada.client.open_group([bob.client.user_id])
            await group.add_agent(agent.agent_id, "all")
            bobs = bob.client.conversation(group.id)
            await grant(bob, bobs, options)
            asked = await _request(bob, lambda: bobs.send("a mail, please"))

            async def show() -> None:
                # Ada can read it, since she is a member.
                frame = again(newest(attacker, "message.created"), 100)
                told = {"event": "artifact_request", "data": asked.call}
                await attacker.push({**frame, **told, "conversation_id": group.id})

            shown = await _request(ada, show)
            assert await shown.decide() == "unable"
            await shown.approve()
            ran = list[str]()
            with pytest.raises(NotApproved):
                await shown.execute(lambda tool, _mail: ran.append(tool))
            with pytest.raises(UsageError):
                await shown.remember()
            await asked.deny()
            await until(lambda: results)
    assert ran == [] and [result.status for result in results] == ["denied"]
    await bob.client.close()


async def test_an_answer_counts_for_its_question_and_from_the_person_who_was_asked(
    cluster: DevCluster, bob: TestUser
) -> None:
    victim, answers = Victim(), list[str]()
    ada = await cluster.user("ada")
    async with (
        attacking(cluster) as attacker,
        _asking(cluster, attacker, ada, victim, answers) as agent,
    ):
        group = await ada.client.open_group([bob.client.user_id])
        await group.add_agent(agent.agent_id, "all")
        delete = await answer_to(ada, lambda: group.send("Delete?"))
        keep = await answer_to(ada, lambda: group.send("Keep?"))
        with pytest.raises(ApiError):
            await bob.client.conversation(group.id).answer(keep.received, "Yes")
        of_delete = await ada.client.approval(delete.received.message["message_id"])
        names = ("approval_id", "seq", "digest")
        lie = {name: dict(of_delete.approval)[name] for name in names}

        def move(frame: Frame) -> Iterable[Frame]:
            if frame.get("event") != "approval.closed":
                return (frame,)
            return ({**changed(frame, **lie), "event_id": new_ulid()}, frame)

        attacker.on_frame = move
        await group.answer(keep.received, "Yes")
        await until(lambda: answers)
    assert victim.faults == ["bad_signature"]
    assert answers == ["Keep? Yes"], "neither moved, nor by another member"
    await ada.client.close()


async def test_an_answer_counts_for_no_question_that_the_server_shows_under_its_id(
    cluster: DevCluster,
) -> None:
    victim, answers = Victim(), list[str]()
    ada = await cluster.user("ada")
    async with (
        attacking(cluster) as attacker,
        _asking(cluster, attacker, ada, victim, answers) as agent,
    ):
        conversation = await ada.client.open_agent(agent.agent_id)
        delete = await answer_to(ada, lambda: conversation.send("Delete?"))
        keep = await answer_to(ada, lambda: conversation.send("Keep?"))
        ids = [each.received.message["message_id"] for each in (delete, keep)]
        exchanged = dict(zip(ids, reversed(ids), strict=True))

        def on_answer(method: str, path: str, data: Any) -> Any:
            if method != "GET" or f"/conversations/{conversation.id}/messages" not in path:
                return data
            looks.append(path)
            return [
                {**each, "message_id": exchanged.get(each["message_id"], each["message_id"])}
                for each in data
            ]

        looks: list[str] = []
        attacker.on_answer = on_answer
        await conversation.answer(keep.received, "Yes")
        await until(lambda: looks)
        attacker.on_answer = lambda _method, _path, data: data
        sure = await answer_to(ada, lambda: conversation.send("Sure?"))
        await conversation.answer(sure.received, "Yes")
        await until(lambda: answers)
    assert answers == ["Sure? Yes"]
    await ada.client.close()
