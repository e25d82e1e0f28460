"""The directory's word about the end of a key, which may lie ahead."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from attacker import Victim, attacked_person, attacking
from blindpipe import Agent
from blindpipe.e2ee import ids
from blindpipe.testing import DevCluster
from blindpipe.transport.clock import now_ms
from live import answer_to, running

HOUR_MS = 3_600_000


def _timestamp(unix_ms: int) -> str:
    return datetime.fromtimestamp(unix_ms / 1000, UTC).isoformat()


@pytest.mark.parametrize("field", ["retired_at", "valid_until"])
async def test_each_reading_tells_the_end_of_a_key_that_is_known(
    cluster: DevCluster, field: str
) -> None:
    victim, end = Victim(), 0

    def on_answer(_method: str, path: str, data: Any) -> Any:
        """The agent's key with an end: in the list of all members, or in the agent's own."""
        if path.split("?")[0].endswith("/recipients") and field == "retired_at":
            agents = (m for m in data["members"] if m["principal_type"] == "agent")
            keys = [key for agent in agents for key in agent["devices"]]
        elif path.endswith("/keys") and path.startswith("/agents/") and field == "valid_until":
            keys = data["keys"]
        else:
            return data
        assert keys
        for key in keys:
            key[field] = _timestamp(end)
        return data

    async with (
        attacking(cluster) as attacker,
        attacked_person(cluster, attacker, "ada", victim) as ada,
    ):
        options = await cluster.agent("rotating", ada.client)
        agent = Agent(options)
        agent.on("message", lambda ctx: ctx.reply("here"))
        who, key_id = ids.principal("agent", agent.agent_id), options.keys()[0].keys().key_id
        async with running(agent):
            conversation = await ada.client.open_agent(agent.agent_id)
            await answer_to(ada, lambda: conversation.send("?"))
            pin = ada.client.trust.pin(who, key_id)
            assert pin and pin.retired_at is None

            async def read() -> None:
                session = ada.client.session
                if field == "valid_until":
                    return await session.directory.refresh(who)
                session.forget(conversation.id)
                await session.load(conversation.id)

            attacker.on_answer, end = on_answer, now_ms() + HOUR_MS
            await read()
            assert pin.retired_at == end
            assert pin.is_accepted(now_ms()) and not pin.is_accepted(end)
            assert victim.notices == []
            end = now_ms() - HOUR_MS
            await read()
            assert pin.retired_at == end and not pin.is_accepted(now_ms())
            assert [kind for kind, _ in victim.notices] == ["retired_key"]
            # The next reading knows an earlier end.
            end -= HOUR_MS
            await read()
            assert pin.retired_at == end
            assert [kind for kind, _ in victim.notices] == ["retired_key"]
