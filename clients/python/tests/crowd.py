"""People who talk to one agent, which several processes share."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from live import texts

from blindpipe import Agent, AgentOptions, Conversation
from blindpipe.testing import DevCluster, TestUser


@dataclass
class Crowd:
    """Four people, each with a conversation of their own."""

    people: list[TestUser]
    options: AgentOptions
    talks: list[Conversation]
    sent: int = 0

    @classmethod
    async def meet(cls, cluster: DevCluster) -> Crowd:
        people = [await cluster.user(f"person-{n}") for n in range(4)]
        options = await cluster.agent("shared", people[0].client)
        checking = Agent(options)
        await checking.check()
        await checking.close()
        talks = [await each.client.open_agent(options.agent_id) for each in people]
        return cls(people, options, talks)

    async def say(self, times: int) -> None:
        for _ in range(times):
            await asyncio.gather(*(talk.send(f"message {self.sent}") for talk in self.talks))
            self.sent += 1

    async def until_answered(self, seconds: float) -> None:
        async with asyncio.timeout(seconds):
            for talk in self.talks:
                while sum(", by " in text for text in await texts(talk)) < self.sent:
                    await asyncio.sleep(0.2)

    async def answered_by(self) -> str:
        """The process that has answered the first one last."""
        return (await texts(self.talks[0]))[-1].rpartition(" ")[2]

    async def check(self) -> None:
        """Each message has one answer, in order."""
        for talk in self.talks:
            answers = [text for text in await texts(talk) if ", by " in text]
            assert [text.partition(",")[0] for text in answers] == [
                f"message {n}" for n in range(self.sent)
            ]

    async def close(self) -> None:
        for person in self.people:
            await person.client.close()
