"""Each example, run as its own process against a real cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from live import (
    MANIFEST,
    TOOLS,
    answer_to,
    collect,
    decide_until_answered,
    environment,
    example,
    from_agent,
    grant,
    process,
)

from blindpipe import AgentOptions, Conversation, ToolRequest
from blindpipe.client import DeltaEvent, MessageEvent
from blindpipe.testing import DevCluster, TestUser


@asynccontextmanager
async def example_runs(
    name: str, cluster: DevCluster, ada: TestUser
) -> AsyncIterator[tuple[Conversation, AgentOptions]]:
    options = await cluster.agent(name, ada.client, manifest=MANIFEST)
    async with process(example(name), environment(cluster, options), options, ada):
        yield await ada.client.open_agent(options.agent_id), options


async def test_echo_repeats(cluster: DevCluster, ada: TestUser) -> None:
    async with example_runs("echo", cluster, ada) as (conversation, _):
        answer = await answer_to(ada, lambda: conversation.send("Grüße"))
        assert answer.text == "You said: Grüße"


async def test_streaming_shows_its_answer_while_it_writes_it(
    cluster: DevCluster, ada: TestUser
) -> None:
    async with example_runs("streaming", cluster, ada) as (conversation, _):
        events = await collect(
            ada, lambda: conversation.send("why?"), lambda all: any(map(from_agent, all))
        )
    message = next(e for e in events if isinstance(e, MessageEvent) and from_agent(e))
    deltas = [event for event in events if isinstance(event, DeltaEvent)]
    assert message.text == "You asked: why? The answer is forty-two. "
    assert len(deltas) >= 2, "it was shown in pieces"
    assert [delta.n for delta in deltas] == list(range(len(deltas)))
    assert message.text.startswith("".join(delta.append for delta in deltas))
    assert {delta.stream_id for delta in deltas} == {message.received.message["client_message_id"]}


async def test_approval_asks_a_device_which_executes_once_and_signs(
    cluster: DevCluster,
) -> None:
    ada = await cluster.user("ada", tools=TOOLS)
    mails: list[object] = []

    async def consent(request: ToolRequest) -> None:
        assert request.arguments == {"to": "team@example.com", "text": "hello"}
        assert request.prompt == "Send this to the team?"
        await request.approve()
        await request.execute(lambda _tool, mail: mails.append(mail))
        await request.execute(lambda _tool, mail: mails.append(mail))

    async with example_runs("approval", cluster, ada) as (conversation, options):
        await grant(ada, conversation, options)
        events = await decide_until_answered(ada, lambda: conversation.send("hello"), consent)
        answer = next(e for e in events if isinstance(e, MessageEvent) and from_agent(e))
        assert answer.text == "Sent."
        assert len(mails) == 1

        async def deny(request: ToolRequest) -> None:
            await request.deny("not_today")

        events = await decide_until_answered(ada, lambda: conversation.send("again"), deny)
        answer = next(e for e in events if isinstance(e, MessageEvent) and from_agent(e))
        assert answer.text == "Not sent: not_today."
    await ada.client.close()


async def test_approval_asks_a_question_whose_state_comes_back_with_the_answer(
    cluster: DevCluster, ada: TestUser
) -> None:
    async with example_runs("approval", cluster, ada) as (conversation, _):
        question = await answer_to(ada, lambda: conversation.send("deploy"))
        assert question.text == "Deploy 1.4.2?"
        reply = await answer_to(ada, lambda: conversation.answer(question.received, "Deploy"))
        assert reply.text == "Deploying 1.4.2."
