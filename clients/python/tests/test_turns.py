"""A stop reaches what runs, and messages that come meanwhile have one handler, without a server."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from blindpipe.agent.turns import MESSAGE, STOP, BusyPolicy, SteerMessage, Turn, Turns
from blindpipe.core.types import Event

CONVERSATION = "01K9ZZZZZZ0000000000000009"


def _event(seq: int, name: str = MESSAGE, **data: Any) -> Event:
    id = f"01K9ZZZZZZ00000000000000{seq:02}"
    return {
        "event_id": id,
        "event": name,
        "cursor": f"1-{seq}",
        "seq": seq,
        "conversation_id": CONVERSATION,
        "created_at": "",
        "data": {"message_id": id, **data},
    }


def _begin(turns: Turns, event: Event) -> Turn:
    turn = turns.begin(event)
    assert turn is not None
    return turn


async def _stopped_by(turns: Turns, *arriving: Event) -> bool:
    """Whether a handler of the first message is cancelled when these arrive."""
    begun = asyncio.Event()

    async def handle() -> bool:
        turn = _begin(turns, _event(1))
        begun.set()
        try:
            await asyncio.sleep(0.05)
        except asyncio.CancelledError:
            assert turn.stopped.is_set() and turn.was_cancelled()
            turns.end(turn)
            # Later messages are not cancelled.
            await asyncio.sleep(0)
            return True
        assert not turn.was_cancelled()
        turns.end(turn)
        return False

    handling = asyncio.create_task(handle())
    await begun.wait()
    for event in arriving:
        turns.arrive(event)
    return await handling


async def test_a_stop_cancels_the_handler_that_runs_and_nothing_after_it() -> None:
    turns = Turns("queue")
    assert await _stopped_by(turns, _event(3, STOP))
    assert turns.begin(_event(2)) is None, "it came before the stop"
    _begin(turns, _event(3, STOP))
    _begin(turns, _event(4))


async def test_a_stop_of_one_answer_stops_that_one() -> None:
    first, second = _event(1)["event_id"], _event(2)["event_id"]
    assert not await _stopped_by(Turns("queue"), _event(3, STOP, in_reply_to=second))
    assert await _stopped_by(Turns("queue"), _event(3, STOP, in_reply_to=first))


async def test_a_stop_before_the_handler_has_begun_keeps_it_from_beginning() -> None:
    turns = Turns("queue")
    turns.arrive(_event(2, STOP))
    assert turns.begin(_event(1)) is None


@pytest.mark.parametrize(("policy", "stops"), [("queue", False), ("interrupt", True), ("drop", False)])
async def test_a_message_meanwhile(policy: BusyPolicy, stops: bool) -> None:
    turns = Turns(policy)
    assert await _stopped_by(turns, _event(2), _event(3, refs=[_event(1)["event_id"]])) is stops
    assert (turns.begin(_event(2)) is None) is (policy == "drop")
    assert turns.begin(_event(3)) is not None, "a change is no message"


async def test_what_a_handler_has_taken_is_handled_by_it_alone() -> None:
    turns = Turns("queue")
    failing = _begin(turns, _event(1))
    turns.arrive(_event(2))
    turns.arrive(_event(3))
    _take(failing)
    # The handler fails, and runs again: what it took then is there again.
    turn = _begin(turns, _event(1))
    assert [event["seq"] for event in turn.arrived] == [2, 3]
    _take(turn)
    assert len(turns.end(turn)) == 1
    assert turns.begin(_event(2)) is None
    assert turns.begin(_event(3)) is not None, "nobody has taken it"


def _take(turn: Turn) -> None:
    turn.taken_events.append(turn.arrived.pop(0))
    taken: Any = object()
    message: SteerMessage = taken
    turn.taken.append(message)
