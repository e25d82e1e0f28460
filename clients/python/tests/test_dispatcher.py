"""Order, acknowledgements and limits, without a server."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

from blindpipe.agent.dispatcher import Dispatcher
from blindpipe.transport.acks import Acks
from blindpipe.core.types import Event


def event(seq: int, conversation: str | None = None) -> Event:
    made: Event = {
        "event_id": str(seq),
        "event": "message.created",
        "cursor": f"1-{seq}",
        "seq": seq,
        "created_at": "",
        "data": {},
    }
    return made | {"conversation_id": conversation} if conversation else made


async def test_acknowledgements_are_few_and_each_says_all_before_it() -> None:
    sent, is_open = list[tuple[float, str]](), False
    loop = asyncio.get_running_loop()

    def send(cursor: str) -> bool:
        if is_open:
            sent.append((loop.time(), cursor))
        return is_open

    acks, begun = Acks(send), loop.time()
    acks.note("1-1")
    await asyncio.sleep(0.25)
    # Without a connection it waits, and goes with the next one.
    is_open = True
    acks.flush()
    for number in range(2, 40):
        acks.note(f"1-{number}")
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.25)
    times = [time for time, _ in sent]
    assert sent[0][1] == "1-1" and times[0] - begun > 0.2 and sent[-1][1] == "1-39"
    assert len(sent) <= 4
    assert all(later - earlier > 0.19 for earlier, later in zip(times[1:], times[2:], strict=False))


def _number(cursor: str) -> int:
    return int(cursor[2:])


async def test_one_event_of_a_conversation_at_a_time_several_conversations_at_once() -> None:
    busy: Counter[str] = Counter()
    seen: list[int] = []
    acks: list[str] = []
    at_once = 0

    async def handle(each: Event) -> None:
        nonlocal at_once
        name = each.get("conversation_id") or ""
        busy[name] += 1
        assert busy[name] == 1
        at_once = max(at_once, busy.total())
        await asyncio.sleep(random.random() * 0.004)
        busy[name] -= 1
        seen.append(each["seq"])

    dispatcher = Dispatcher(3, handle, acks.append)
    for seq in range(1, 61):
        dispatcher.push(event(seq, ["a", "b", "c", "d", None][seq % 5]))
    await dispatcher.idle()
    assert at_once == 3
    for rest in range(5):
        line = [seq for seq in seen if seq % 5 == rest]
        assert line == sorted(line) and len(line) == 12
    assert [_number(cursor) for cursor in acks] == sorted(map(_number, acks))
    assert acks[-1] == "1-60"


async def test_nothing_is_acknowledged_beyond_an_event_that_is_not_handled() -> None:
    acks: list[str] = []
    slow = asyncio.Event()

    async def handle(each: Event) -> None:
        if each["seq"] == 2:
            await slow.wait()

    dispatcher = Dispatcher(8, handle, acks.append)
    for seq in range(1, 6):
        dispatcher.push(event(seq, str(seq)))
    await asyncio.sleep(0.01)
    assert acks == ["1-1"]
    slow.set()
    await dispatcher.idle()
    assert acks[-1] == "1-5"


async def test_after_a_stop_nothing_begins_and_what_failed_is_not_acknowledged() -> None:
    acks: list[str] = []
    begun: list[int] = []

    async def handle(each: Event) -> None:
        begun.append(each["seq"])
        await asyncio.sleep(0.002)
        raise ValueError

    dispatcher = Dispatcher(1, handle, acks.append)
    dispatcher.push(event(1, "a"))
    dispatcher.push(event(2, "a"))
    await asyncio.sleep(0)
    dispatcher.stop()
    await dispatcher.idle()
    assert (begun, acks) == ([1], [])
