"""A device runs what its table and the person allow, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from attacker import has_event
from live import (
    answer_to,
    collect,
    decide_until_answered,
    from_agent,
    grant,
    running,
    sign_in,
)

from blindpipe import (
    Agent,
    CallResult,
    Client,
    Context,
    Conversation,
    FileStore,
    NotApproved,
    ToolRequest,
    UsageError,
)
from blindpipe.client import ClientEvent, Sensitivity, Tool, ToolRequestEvent
from blindpipe.e2ee import Principal, ids
from blindpipe.e2ee.consent import Consents, Decision
from blindpipe.e2ee.envelope import Request
from blindpipe.testing import DevCluster, TestUser

SCOPE = "notification:send"
NAMES = ("ping", "read", "wipe", "unheard_of")
MANIFEST = {
    "tools": [{"name": name, "scope": SCOPE} for name in NAMES],
    "permission_scopes": [{"scope": SCOPE, "sensitivity": "low"}],
}
DAY_MS = 24 * 60 * 60_000


@asynccontextmanager
async def _asked(
    cluster: DevCluster, ran: list[tuple[str, Any]], **changes: Any
) -> AsyncIterator[tuple[TestUser, Conversation, list[CallResult]]]:
    """A person with a table of tools, and an agent that asks for the `tool[@device]` it is told."""

    async def run(tool: str, arguments: dict[str, Any]) -> str:
        ran.append((tool, arguments))
        return f"{tool} is done"

    tools = {
        "ping": Tool(SCOPE, Sensitivity.LOW, run),
        "read": Tool(SCOPE, Sensitivity.MEDIUM, run),
        "wipe": Tool(SCOPE, Sensitivity.HIGH, run),
    }
    ada, results = await cluster.user("ada", tools=tools, **changes), list[CallResult]()
    options = await cluster.agent("asker", ada.client, manifest=MANIFEST)
    agent = Agent(options)

    @agent.on("message")
    async def ask(ctx: Context) -> None:
        tool, _, device = ctx.text.partition("@")
        results.append(await ctx.call(tool, SCOPE, {"of": tool}, device=device or None))
        await ctx.reply("done")

    async with running(agent):
        conversation = await ada.client.open_agent(agent.agent_id)
        await grant(ada, conversation, options)
        yield ada, conversation, results
    await ada.client.close()


async def _refused(request: ToolRequest) -> str:
    with pytest.raises(NotApproved) as refused:
        await request.execute()
    assert refused.value.code == "not_approved"
    return refused.value.decision


async def test_a_request_that_nobody_approved_executes_nothing(cluster: DevCluster) -> None:
    ran = list[tuple[str, Any]]()
    async with _asked(cluster, ran) as (ada, conversation, results):

        async def refuse(request: ToolRequest) -> None:
            assert await _refused(request) == "ask"
            assert await _refused(request) == "ask"
            with pytest.raises(NotApproved):
                await request.execute(lambda *asked: ran.append(asked))
            await request.deny()

        for tool in ("ping", "wipe"):
            await decide_until_answered(ada, partial(conversation.send, tool), refuse)
    assert ran == []
    assert [(each.status, each.reason) for each in results] == [("denied", "user_denied")] * 2


async def test_what_a_device_remembers_outlives_a_restart(
    cluster: DevCluster, tmp_path: Path
) -> None:
    ran, decisions = list[tuple[str, Any]](), list[str]()
    path = tmp_path / "ada"
    async with _asked(cluster, ran, store=FileStore(path)) as (ada, conversation, _):

        async def remembering(request: ToolRequest) -> None:
            decisions.append(await request.decide())
            if decisions[-1] == "ask":
                await request.remember()
            await request.execute()
            decisions.append(await request.decide())

        await decide_until_answered(ada, partial(conversation.send, "ping"), remembering)
        await ada.client.close()
        tools = ada.client._consents.tools
        options = cluster.options(store=FileStore(path), tools=tools)
        ada = replace(ada, client=await Client.resume(options))
        begun = (await ada.client._consents.load()).store()["begun"]
        assert len(begun) == 1, "it runs once, also after a restart"
        conversation = ada.client.conversation(conversation.id)
        await decide_until_answered(ada, partial(conversation.send, "ping"), remembering)
        await ada.client.close()
    assert decisions == ["ask", "repeated", "execute", "repeated"] and len(ran) == 2


async def test_an_approval_is_for_one_request_and_what_is_remembered_for_one_tool(
    cluster: DevCluster,
) -> None:
    ran, decisions = list[tuple[str, Any]](), list[str]()
    async with _asked(cluster, ran) as (ada, conversation, results):

        async def once(request: ToolRequest) -> None:
            decisions.append(await request.decide())
            await request.approve()
            await request.execute()

        async def remembering(request: ToolRequest) -> None:
            decisions.append(await request.decide())
            await request.remember()
            await request.execute()

        async def unasked(request: ToolRequest) -> None:
            decisions.append(await request.decide())
            await request.execute()

        async def never(request: ToolRequest) -> None:
            for days in (0, 31):
                with pytest.raises(UsageError):
                    await request.remember(days)
            with pytest.raises(UsageError):
                await request.remember()
            decisions.append(await _refused(request))
            await request.deny()

        rows: list[tuple[str, Callable[[ToolRequest], Awaitable[None]]]] = [
            ("ping", once),
            ("ping", remembering),
            ("ping", unasked),
            ("read", once),
            ("wipe", never),
        ]
        for tool, decide in rows:
            await decide_until_answered(ada, partial(conversation.send, tool), decide)
    assert decisions == ["ask", "ask", "execute", "ask", "ask"]
    # The table's own `run` got the tool's name and the arguments.
    assert ran == [(tool, {"of": tool}) for tool in ("ping", "ping", "ping", "read")]
    assert [each.result for each in results[:4]] == [f"{tool} is done" for tool, _ in rows[:4]]


@pytest.mark.parametrize("how", ["by execute", "by default"])
async def test_a_tool_that_the_device_does_not_know_is_answered_at_once(
    cluster: DevCluster, how: str
) -> None:
    async with _asked(cluster, []) as (ada, conversation, results):

        async def decide(request: ToolRequest) -> None:
            assert await request.decide() == "unable"
            if how == "by execute":
                await request.execute()

        async with asyncio.timeout(10):
            say = partial(conversation.send, "unheard_of")
            await decide_until_answered(ada, say, decide)
    assert [(each.status, each.reason) for each in results] == [("failed", "unknown_tool")]


async def test_an_unknown_tool_is_left_to_another_device_that_may_know_it(
    cluster: DevCluster,
) -> None:
    async with _asked(cluster, []) as (ada, conversation, results):
        tools = {"unheard_of": Tool(SCOPE, Sensitivity.LOW)}
        phone = await sign_in(cluster, ada, "phone", tools=tools)
        await phone.devices.restore(ada.protection_password)
        user = TestUser(phone, ada.email, ada.password, ada.protection_password)

        async def on_laptop(request: ToolRequest) -> None:
            assert await request.decide() == "unable"

        async def on_phone(request: ToolRequest) -> None:
            await request.approve()
            await request.execute(lambda tool, _: f"{tool} on the phone")

        caught_up = asyncio.Event()

        async def begun() -> None:
            caught_up.set()

        laptop = asyncio.create_task(decide_until_answered(ada, begun, on_laptop))
        await caught_up.wait()
        await decide_until_answered(user, partial(conversation.send, "unheard_of"), on_phone)
        await laptop
        await phone.close()
    assert [each.result for each in results] == ["unheard_of on the phone"]


async def test_of_two_devices_one_runs_a_request_that_names_none(cluster: DevCluster) -> None:
    ran = list[str]()
    async with _asked(cluster, []) as (ada, conversation, results):
        tools = {"ping": Tool(SCOPE, Sensitivity.LOW)}
        phone = await sign_in(cluster, ada, "phone", node=1, tools=tools)
        await phone.devices.restore(ada.protection_password)
        user = TestUser(phone, ada.email, ada.password, ada.protection_password)
        both, caught_up = asyncio.Barrier(2), asyncio.Event()

        async def decide(request: ToolRequest) -> None:
            await request.approve()
            await both.wait()
            await request.execute(lambda tool, _: ran.append(tool))

        async def begun() -> None:
            caught_up.set()

        laptop = asyncio.create_task(decide_until_answered(ada, begun, decide))
        await caught_up.wait()
        await decide_until_answered(user, partial(conversation.send, "ping"), decide)
        await laptop
        await phone.close()
    assert (ran, [each.status for each in results]) == (["ping"], ["executed"])


async def test_a_request_for_another_device_runs_on_none_else(cluster: DevCluster) -> None:
    ran, refused = list[tuple[str, Any]](), list[str]()
    async with _asked(cluster, ran) as (ada, conversation, results):
        tools = {"ping": Tool(SCOPE, Sensitivity.LOW)}
        phone = await sign_in(cluster, ada, "phone", node=1, tools=tools)
        await phone.devices.restore(ada.protection_password)
        user = TestUser(phone, ada.email, ada.password, ada.protection_password)
        caught_up, is_refused = asyncio.Event(), asyncio.Event()

        async def on_laptop(request: ToolRequest) -> None:
            # The laptop has a tool of this name, and its person agrees.
            await request.approve()
            with pytest.raises(UsageError):
                await request.remember()
            refused.append(await _refused(request))
            is_refused.set()

        async def on_phone(request: ToolRequest) -> None:
            await is_refused.wait()
            await request.approve()
            await request.execute(lambda tool, _: f"{tool} on the phone")

        async def begun() -> None:
            caught_up.set()

        laptop = asyncio.create_task(decide_until_answered(ada, begun, on_laptop))
        await caught_up.wait()
        await decide_until_answered(user, partial(conversation.send, "ping@phone"), on_phone)
        await laptop
        await phone.close()
    assert (ran, refused) == ([], ["unable"])
    assert [each.result for each in results] == ["ping on the phone"]


async def test_who_leaves_while_a_tool_runs_reads_no_answer(cluster: DevCluster) -> None:
    has_left = asyncio.Event()

    async def run(_tool: str, _arguments: dict[str, Any]) -> str:
        await eve.client.conversation(group.id).remove_member(eve.client.user_id)
        await has_left.wait()
        return "done"

    tools = {"ping": Tool(SCOPE, Sensitivity.LOW, run)}
    ada, eve = await cluster.user("ada", tools=tools), await cluster.user("eve")
    options = await cluster.agent("asker", ada.client, manifest=MANIFEST)
    agent = Agent(options)

    @agent.on("message")
    async def ask(ctx: Context) -> None:
        if ctx.text == "ask":
            await ctx.reply((await ctx.request_grant(SCOPE))["grant_id"])
            return
        await ctx.call("ping", SCOPE, {})
        await ctx.reply("done")

    async with running(agent), asyncio.TaskGroup() as runs:
        await ada.client.open_agent(agent.agent_id)
        group = await ada.client.open_group([eve.client.user_id])
        await group.add_agent(agent.agent_id, "all")
        asked = (await answer_to(ada, lambda: group.send("ask"))).received.text
        await ada.client.decide_grant(str(asked), "approve")
        before = (await group.info())["epoch"]

        def enough(events: list[ClientEvent]) -> bool:
            last = events[-1]
            if isinstance(last, ToolRequestEvent):
                runs.create_task(_run_approved(last.request))
            if has_event("member.removed")(events):
                has_left.set()
            return any(map(from_agent, events))

        await collect(ada, partial(group.send, "ping"), enough)
        # Nobody else has made a secret: agents make none.
        assert (await group.info())["epoch"] > before
    await ada.client.close()
    await eve.client.close()


async def _run_approved(request: ToolRequest) -> None:
    await request.approve()
    await request.execute()


def test_what_is_remembered_ends_by_time_and_by_a_withdrawal() -> None:
    me, agent, room = Principal.user(bytes(16)), ids.principal("agent", ids.new_ulid()), bytes(16)
    consents = Consents(
        {
            "ping": Tool(SCOPE, Sensitivity.LOW),
            "read": Tool(SCOPE, Sensitivity.MEDIUM),
            "wipe": Tool(SCOPE, Sensitivity.HIGH),
            "list": Tool("files:read", Sensitivity.LOW),
        }
    )

    def decided(tool: str, now: int) -> Decision:
        again = Consents.stored(consents.tools, consents.store())
        request = Request(me.id, f"r-{tool}-{now}", tool, consents.tools[tool].scope, None)
        return again.decide(me, room, agent, request, None, now)

    assert consents.remember(room, agent, "ping", 0, 2)
    assert consents.remember(room, agent, "read", 0, 2)
    assert not consents.remember(room, agent, "wipe", 0, 2)
    assert (decided("ping", 2 * DAY_MS - 1), decided("ping", 2 * DAY_MS)) == ("execute", "ask")
    assert (decided("read", 2 * DAY_MS - 1), decided("read", 2 * DAY_MS)) == ("execute", "ask")
    assert decided("ping", -29 * DAY_MS) == "ask", "a clock that was set back makes it no longer"
    assert (decided("wipe", 0), decided("list", 0)) == ("ask", "ask")
    assert consents.remember(room, agent, "list", 0, 2)
    assert consents.withdraw(agent, SCOPE)
    assert (decided("ping", 0), decided("list", 0)) == ("ask", "execute")
    assert consents.withdraw(agent) and not consents.withdraw(agent)
    assert decided("list", 0) == "ask"


def test_a_request_that_began_is_kept_for_31_days() -> None:
    agent = ids.principal("agent", ids.new_ulid())
    # An earlier version kept no times: the first request of this version dates its names.
    old = f"{agent.to_bytes().hex()}:old"
    earlier: Any = {"begun": [old], "remembered": {}}
    consents = Consents.stored({}, earlier)

    def began(request_id: str, now: int) -> bool:
        nonlocal consents
        is_new = consents.begin(agent, request_id, now)
        consents = Consents.stored({}, consents.store())
        return is_new

    assert (began("old", 0), began("first", DAY_MS)) == (False, True)
    assert (began("old", 32 * DAY_MS), began("first", 32 * DAY_MS)) == (False, False)
    assert began("second", 32 * DAY_MS), "31 days are kept"
    assert len(consents.store()["begun"]) == 3
    assert began("third", 32 * DAY_MS + 1)
    names = [name.split(":")[1] for name in consents.store()["begun"]]
    assert names == ["second", "third"], "31 days and a millisecond are not"
    assert began("fourth", 0), "a clock that was set back forgets nothing"
    assert not began("second", 0)
    earlier["begun_at"] = [DAY_MS]
    assert Consents.stored({}, earlier).store()["begun"] == {old: DAY_MS}


def test_a_store_is_given_what_has_changed() -> None:
    agent, room = ids.principal("agent", ids.new_ulid()), bytes(16)
    consents = Consents({"ping": Tool(SCOPE, Sensitivity.LOW)})
    assert consents.begin(agent, "first", 1) and not consents.begin(agent, "first", 2)
    changed = consents.take_changed()
    assert list(changed["begun"].values()) == [1] and not changed["remembered"]
    assert not consents.has_changed
    assert consents.begin(agent, "second", 2)
    assert consents.remember(room, agent, "ping", 0, 2)
    changed = consents.take_changed()
    assert list(changed["begun"].values()) == [2]
    assert [kept and kept["until"] for kept in changed["remembered"].values()] == [2 * DAY_MS]
    # A store that fails is given them again, as they are then.
    consents.not_kept(changed)
    assert consents.withdraw(agent)
    changed = consents.take_changed()
    assert list(changed["begun"].values()) == [2]
    assert list(changed["remembered"].values()) == [None]
    assert Consents.stored(consents.tools, changed).store()["remembered"] == {}
