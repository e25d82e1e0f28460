"""An active server alters, replays, reorders and holds back what people and agents say."""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from attacker import (
    Json,
    Victim,
    again,
    attacked_agent,
    attacked_person,
    attacking,
    changed,
    echo,
    flipped,
    is_message,
)
from live import ROOT, collect, from_agent, running, texts, until

from blindpipe import Agent, Context, ReceivedMessage
from blindpipe.client import CaughtUp, ClientEvent, DeltaEvent, MessageEvent
from blindpipe.e2ee.ids import new_ulid
from blindpipe.e2ee.trust import NoticeKind
from blindpipe.testing import DevCluster, TestUser
from blindpipe.transport.socket import Frame

CLEAR = {"type": "text", "text": "forged"}
Change = Callable[[Json, str, str], Json]
"""Changes a message, given another conversation's id and another member's."""

CHANGES: dict[str, tuple[Change, str]] = {
    "its ciphertext": (lambda m, _c, _u: {"payload": flipped(m["payload"])}, "bad_ciphertext"),
    "its sender": (
        lambda m, _c, user: {"sender": {**m["sender"], "id": user}},
        "bad_ciphertext",
    ),
    "its conversation": (lambda _m, other, _u: {"conversation_id": other}, "no_epoch_key"),
    "its conversation, by none": (
        lambda _m, _c, _u: {"conversation_id": new_ulid()},
        "no_epoch_key",
    ),
    "its conversation, but not its event's": (
        lambda _m, other, _u: {"conversation_id": other},
        "malformed",
    ),
    "its id": (lambda _m, _c, _u: {"client_message_id": new_ulid()}, "bad_ciphertext"),
    "what it answers": (lambda _m, _c, _u: {"in_reply_to": new_ulid()}, "bad_ciphertext"),
    "the payload, by clear text": (lambda _m, _c, _u: {"payload": CLEAR}, "clear"),
    "the scheme": (lambda m, _c, _u: {"payload": {**m["payload"], "v": 2}}, "unknown_version"),
    "the payload, by nothing": (lambda _m, _c, _u: {"payload": None}, "clear"),
}


def _altering(other: str, user: str) -> Callable[[Frame], Iterable[Frame]]:
    """Changes each message as the next row of the table says; the one after them is left."""
    rows = iter(CHANGES.values())

    def on_frame(frame: Frame) -> Iterable[Frame]:
        row = next(rows, None) if is_message(frame) else None
        if row is None:
            return (frame,)
        fields, reason = row[0](frame["data"], other, user), row[1]
        moved = {"conversation_id"} & fields.keys() if reason == "no_epoch_key" else ()
        return ({**changed(frame, **fields), **{name: fields[name] for name in moved}},)

    return on_frame


async def test_an_agent_handles_no_altered_message(
    cluster: DevCluster, ada: TestUser, bob: TestUser
) -> None:
    victim = Victim()
    async with (
        attacking(cluster) as attacker,
        attacked_agent(cluster, attacker, ada.client, victim) as (agent, _),
    ):
        conversation = await ada.client.open_agent(agent.agent_id)
        other = await ada.client.open_group([bob.client.user_id])
        await other.add_agent(agent.agent_id, "all")
        await other.rotate()
        attacker.on_frame = _altering(other.id, bob.client.user_id)
        for name in CHANGES:
            await conversation.send(f"alter {name}")
        await conversation.send("leave this")
        await until(lambda: victim.heard and len(victim.faults) == len(CHANGES))
    assert victim.heard == ["leave this"]
    assert sorted(victim.faults) == sorted(reason for _, reason in CHANGES.values())


async def test_a_person_is_shown_no_altered_message(cluster: DevCluster, ada: TestUser) -> None:
    victim, shown = Victim(), list[tuple[str | None, str | None]]()
    async with (
        attacking(cluster) as attacker,
        attacked_person(cluster, attacker, "bob", victim) as bob,
    ):
        conversation = await ada.client.open_direct(bob.client.user_id)
        other = await ada.client.open_group([bob.client.user_id])
        await other.send("here")
        await conversation.send("first")

        async def say() -> None:
            attacker.on_frame = _altering(other.id, bob.client.user_id)
            for name in CHANGES:
                await conversation.send(f"alter {name}")
            await conversation.send("leave this")

        events = await collect(bob, say, lambda all: _count(all) > len(CHANGES))
    for event in events:
        if isinstance(event, MessageEvent):
            fault = event.received.fault
            shown.append((event.text, fault.reason if fault else None))
    reasons = [reason for _, reason in CHANGES.values()]
    # An event that names another conversation waits there, and the others do not wait for it.
    assert Counter(shown) == Counter([*((None, each) for each in reasons), ("leave this", None)])
    assert sorted(victim.faults) == sorted(reasons)


def _count(events: list[ClientEvent]) -> int:
    return sum(isinstance(event, MessageEvent) for event in events)


async def test_a_message_that_is_replayed_is_handled_and_shown_once(
    cluster: DevCluster, ada: TestUser
) -> None:
    victim = Victim()
    held: list[Frame] = []

    def on_frame(frame: Frame) -> Iterable[Frame]:
        if not is_message(frame):
            return (frame,)
        held.append(frame)
        return (frame, again(frame), again(frame))

    async with attacking(cluster) as attacker:
        attacker.on_frame = on_frame
        async with attacked_agent(cluster, attacker, ada.client, victim) as (agent, options):
            conversation = await ada.client.open_agent(agent.agent_id)
            await conversation.send("one")
            await conversation.send("two")
            await until(lambda: len(victim.heard) == 2)
        # Without a store the next start knows nothing of it; its reply has the same id.
        replayed = echo(options, victim)
        async with running(replayed):
            await attacker.push(again(held[0], 50))
            await until(lambda: len(victim.heard) == 3)
            await attacker.push(again(held[0], 51))
            await attacker.push(again(held[1], 52))
            await until(lambda: len(victim.heard) == 4)
    assert victim.heard == ["one", "two", "one", "two"]
    replies = sorted(text for text in await texts(conversation) if text.startswith("You"))
    assert replies == ["You said: one", "You said: two"]


async def test_a_person_sees_a_replayed_message_once(cluster: DevCluster, ada: TestUser) -> None:
    victim = Victim()
    async with (
        attacking(cluster) as attacker,
        attacked_person(cluster, attacker, "bob", victim) as bob,
    ):
        conversation = await ada.client.open_direct(bob.client.user_id)
        await conversation.send("first")

        async def say() -> None:
            attacker.on_frame = lambda f: (f, again(f), again(f)) if is_message(f) else (f,)
            await conversation.send("once")
            await conversation.send("last")

        def has_last(events: list[ClientEvent]) -> bool:
            return any(isinstance(each, MessageEvent) and each.text == "last" for each in events)

        events = await collect(bob, say, has_last)
    assert [each.text for each in events if isinstance(each, MessageEvent)] == ["once", "last"]


async def test_a_message_that_is_held_back_too_long_is_stale_and_a_moved_time_is_shown(
    cluster: DevCluster, ada: TestUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim, held, max_age = Victim(), list[Frame](), timedelta(minutes=1)
    async with (
        attacking(cluster) as attacker,
        attacked_agent(cluster, attacker, ada.client, victim, max_age=max_age) as (agent, _),
        attacked_person(cluster, attacker, "bob", Victim()) as bob,
    ):
        conversation = await ada.client.open_agent(agent.agent_id)

        def hold(frame: Frame) -> Iterable[Frame]:
            if is_message(frame) and not held:
                held.append(frame)
                return ()
            return (frame,)

        attacker.on_frame = hold
        await conversation.send("held back")
        await conversation.send("in time")
        await until(lambda: victim.heard)
        with monkeypatch.context() as later:
            now = time.time_ns
            later.setattr(time, "time_ns", lambda: now() + round(max_age.total_seconds() * 1e9))
            told = (datetime.now(UTC) + max_age).isoformat()
            await attacker.push(changed(again(held[0], 9), created_at=told))
            await until(lambda: victim.faults)
        assert (victim.heard, victim.faults) == (["in time"], ["stale"])

        direct = await ada.client.open_direct(bob.client.user_id)
        await direct.send("first")
        attacker.on_frame = lambda f: (
            (changed(f, created_at="2026-01-01T00:00:00Z"),) if is_message(f) else (f,)
        )
        events = await collect(bob, lambda: direct.send("when?"), lambda all: _count(all) > 0)
    came = next(event for event in events if isinstance(event, MessageEvent))
    assert came.received.opened
    assert NoticeKind.OTHER_TIME in [notice.kind for notice in came.received.opened.notices]


async def test_messages_in_another_order_are_each_handled_once(
    cluster: DevCluster, ada: TestUser
) -> None:
    """The order is the server's word; no message is lost, doubled or changed by it."""
    victim, held = Victim(), list[Frame]()

    def reorder(frame: Frame) -> Iterable[Frame]:
        if not is_message(frame):
            return (frame,)
        held.append(frame)
        if len(held) < 3:
            return ()
        numbered = zip(reversed(held), list(held), strict=True)
        return [{**late, "cursor": own["cursor"], "seq": own["seq"]} for late, own in numbered]

    async with (
        attacking(cluster) as attacker,
        attacked_agent(cluster, attacker, ada.client, victim) as (agent, _),
    ):
        conversation = await ada.client.open_agent(agent.agent_id)
        attacker.on_frame = reorder
        for text in ("one", "two", "three"):
            await conversation.send(text)
        await until(lambda: len(victim.heard) == 3)
        replies = await _settled(conversation)
    assert victim.heard == ["three", "two", "one"]
    assert sorted(replies) == ["You said: one", "You said: three", "You said: two"]


async def _settled(conversation: Any) -> list[str]:
    async with asyncio.timeout(10):
        while True:
            found = [text for text in await texts(conversation) if text.startswith("You")]
            if len(found) == 3:
                return found
            await asyncio.sleep(0.02)


async def test_nothing_shows_that_a_message_was_dropped_but_what_answers_it(
    cluster: DevCluster, ada: TestUser
) -> None:
    """Silence is not protected: neither a fault nor a notice tells of it."""
    agents, bobs, dropped = Victim(), Victim(), new_ulid()
    before: list[int] = []

    def drop(frame: Frame) -> Iterable[Frame]:
        lost = is_message(frame) and frame["data"]["client_message_id"] == dropped
        return () if lost else (frame,)

    async with (
        attacking(cluster) as attacker,
        attacked_agent(cluster, attacker, ada.client, agents) as (agent, _),
        attacked_person(cluster, attacker, "bob", bobs) as bob,
    ):
        await ada.client.open_agent(agent.agent_id)
        group = await ada.client.open_group([bob.client.user_id])
        await group.add_agent(agent.agent_id, "all")

        async def lost() -> ReceivedMessage:
            return [each async for each in group.history() if each.text == "two"][0]

        async def say() -> None:
            attacker.on_frame = drop
            await group.send("one")
            await until(lambda: agents.heard)
            before.extend((len(agents.notices), len(bobs.notices)))
            await group.send("two", client_message_id=dropped)
            await group.send("three", in_reply_to=await lost())

        def has_last(events: list[ClientEvent]) -> bool:
            return any(isinstance(each, MessageEvent) and each.text == "three" for each in events)

        events = await collect(bob, say, has_last)
        await until(lambda: "three" in agents.heard)
        said = [each for each in events if isinstance(each, MessageEvent) and not from_agent(each)]
        assert [each.text for each in said] == agents.heard == ["one", "three"]
        assert (len(agents.notices), len(bobs.notices)) == tuple(before)
        assert not agents.faults and not bobs.faults
        # The reply to it is the sign: it answers what was not shown.
        assert [_is_quoted(each.received) for each in said] == [True, False]
        # A history that drops nothing has it.
        assert "two" in await texts(bob.client.conversation(group.id))


def _is_quoted(received: ReceivedMessage) -> bool:
    assert received.opened
    return NoticeKind.NO_QUOTE not in [notice.kind for notice in received.opened.notices]


async def test_a_reply_is_quoted_only_if_it_names_what_was_shown(
    cluster: DevCluster, ada: TestUser
) -> None:
    exchanged = dict[str, str]()

    def exchange(frame: Frame) -> Iterable[Frame]:
        if not is_message(frame) or frame["data"].get("in_reply_to"):
            return (frame,)
        id = frame["data"]["message_id"]
        return (changed(frame, message_id=exchanged.get(id, id)),)

    async with (
        attacking(cluster) as attacker,
        attacked_person(cluster, attacker, "bob", Victim()) as bob,
    ):
        direct = await ada.client.open_direct(bob.client.user_id)
        for text in ("delete?", "keep?", "again?"):
            await direct.send(text)
        again_, keep, delete = [each async for each in direct.history()]
        ids = [each.message["message_id"] for each in (delete, keep)]
        exchanged.update(zip(ids, reversed(ids), strict=True))
        attacker.on_frame = exchange
        shown = list[ReceivedMessage]()

        def enough(events: list[ClientEvent]) -> bool:
            shown[:] = [each.received for each in events if isinstance(each, MessageEvent)]
            return len(shown) == 3

        async def reply() -> None:
            own = await bob.client.conversation(direct.id).send("mine")
            mine = await anext(aiter(direct.history()))
            assert mine.message["message_id"] == own["message_id"]
            for answered in (keep, again_, mine):
                await direct.send("yes", in_reply_to=answered)

        await _collect_all(bob, reply, enough)
        assert [_is_quoted(each) for each in shown] == [False, True, True]
        # The history shows them as they are, and a page knows what its replies answer.
        fresh = [each async for each in bob.client.conversation(direct.id).history()]
        assert [each.text for each in fresh[:3]] == ["yes"] * 3


async def _collect_all(
    user: TestUser,
    act: Callable[[], Awaitable[object]],
    enough: Callable[[list[ClientEvent]], bool],
) -> None:
    """The replies after `act`; what came before is shown first."""
    events, acted = list[ClientEvent](), False
    async with aclosing(user.client.events()) as coming:
        async for event in coming:
            if acted and isinstance(event, MessageEvent):
                if event.received.message.get("in_reply_to"):
                    events.append(event)
                if enough(events):
                    return
            elif isinstance(event, CaughtUp):
                acted = True
                await act()


async def test_an_agent_that_takes_clear_text_takes_none_where_anything_was_encrypted(
    cluster: DevCluster, ada: TestUser
) -> None:
    victim = Victim()
    async with (
        attacking(cluster) as attacker,
        attacked_agent(cluster, attacker, ada.client, victim, plaintext="allow") as (agent, _),
    ):
        conversation = await ada.client.open_agent(agent.agent_id)
        await conversation.send("encrypted")
        await until(lambda: victim.heard)
        attacker.on_frame = lambda f: (changed(f, payload=CLEAR) if is_message(f) else f,)
        await conversation.send("true")
        await until(lambda: victim.faults)
    assert (victim.heard, victim.faults) == (["encrypted"], ["clear"])


@pytest.mark.parametrize("attack", ["swapped", "altered", "late", "again"])
async def test_pieces_of_a_stream_are_shown_in_their_places_or_not_at_all(
    cluster: DevCluster, attack: str
) -> None:
    victim, pieces = Victim(), list[Frame]()
    begun, message = list[Frame](), list[Frame]()

    def on_frame(frame: Frame) -> Iterable[Frame]:
        if frame["type"] == "stream.begin":
            begun.append(frame)
        if frame["type"] == "stream.delta":
            pieces.append(frame)
            if attack == "swapped":
                return ({**frame, "n": frame["n"] + 1},)
            if attack == "altered":
                return ({**frame, "data": flipped({"ciphertext": frame["data"]})["ciphertext"]},)
            # The second piece first, then each of them, then the second once more.
            is_again = attack == "again" and len(pieces) == 2
            return (pieces[1], *pieces, pieces[1]) if is_again else ()
        if is_message(frame) and frame["data"]["sender"]["type"] == "agent":
            message.append(frame)
            # After the message, its pieces show nothing.
            is_late = attack == "late" and len(message) == 1
            return (frame, *begun, *pieces) if is_late else (frame,)
        return (frame,)

    async with (
        attacking(cluster) as attacker,
        attacked_person(cluster, attacker, "ada", victim) as ada,
    ):
        agent = Agent(await cluster.agent("writer", ada.client))

        @agent.on("message")
        async def write(ctx: Context) -> None:
            async with ctx.stream() as out:
                for word in ("one ", "two ", "three"):
                    out.write(word)
                    await asyncio.sleep(0.1)
            await ctx.reply("that was all")

        async with running(agent):
            conversation = await ada.client.open_agent(agent.agent_id)
            attacker.on_frame = on_frame

            events = await collect(
                ada, lambda: conversation.send("?"), lambda all: sum(map(from_agent, all)) == 2
            )
    assert len(pieces) >= 2
    deltas = [event.n for event in events if isinstance(event, DeltaEvent)]
    # The second piece waits for the first one, and comes once.
    assert deltas == ([0, 1] if attack == "again" else [])
    is_refused = attack in ("swapped", "altered")
    assert victim.faults == (["bad_ciphertext"] * len(pieces) if is_refused else [])
    said = [each.text for each in events if isinstance(each, MessageEvent) and from_agent(each)]
    assert said == ["one two three", "that was all"]


def test_the_table_of_attacks_names_tests_that_are_there() -> None:
    """`docs/encryption.md` names a test per attack; an ellipsis stands for the end of a name."""
    text = (ROOT / "docs/encryption.md").read_text()
    here = "".join(path.read_text() for path in Path(__file__).parent.glob("test_attacks_*.py"))
    named = set(re.findall(r"`(test_\w+…?)`", text))
    assert len(named) >= 20
    for name in named:
        begins = name.removesuffix("…") if name.endswith("…") else f"{name}("
        assert f"def {begins}" in here, name
