"""A conversation that is not known yet is read before its events are handled."""

from __future__ import annotations

import asyncio

from attacker import Victim, attacked_agent, attacking
from live import until

from blindpipe import Conversation
from blindpipe.testing import DevCluster, TestUser


async def test_a_conversation_whose_reading_lasts_holds_up_no_other_one(
    cluster: DevCluster, ada: TestUser, bob: TestUser
) -> None:
    victim, is_read, may_go_on = Victim(), asyncio.Event(), asyncio.Event()
    async with (
        attacking(cluster) as attacker,
        attacked_agent(cluster, attacker, ada.client, victim) as (agent, _),
    ):
        await ada.client.open_agent(agent.agent_id)

        async def group(title: str) -> Conversation:
            made = await ada.client.open_group([bob.client.user_id], title=title)
            await made.add_agent(agent.agent_id, "all")
            return made

        slow, other = await group("slow"), await group("other")

        async def before(_method: str, path: str) -> None:
            if path == f"/conversations/{slow.id}":
                is_read.set()
                await may_go_on.wait()

        attacker.before = before
        await slow.send("first")
        await is_read.wait()
        # An event that changes the keys of the conversation that is being read.
        await slow.rotate()
        await slow.send("second")
        for number in range(20):
            await other.send(f"other {number}")
        await until(lambda: len(victim.heard) == 20, 20)
        assert victim.heard == [f"other {number}" for number in range(20)]
        may_go_on.set()
        await until(lambda: len(victim.heard) == 22)
        assert victim.heard[20:] == ["first", "second"]
    assert victim.faults == []
