"""Approvals: asked by one process, decided on a device, acted on by another process."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from live import answer_to, asked, running, sign_in

from blindpipe import Agent, AgentOptions, ApiError, Context
from blindpipe.agent import Approval, ApprovalResult, Receipt
from blindpipe.e2ee import E2eeError, PublicKeys
from blindpipe.e2ee.approval import ReceiptError
from blindpipe.testing import DevCluster, TestUser


def _deciding(options: AgentOptions, name: str) -> tuple[Agent, asyncio.Queue[ApprovalResult]]:
    """An agent of another process, which knows nothing of the one that asked."""
    agent, decided = Agent(options), asyncio.Queue[ApprovalResult]()

    @agent.on_decision(name)
    async def on_decision(ctx: Context) -> None:
        await decided.put(ctx.decision)

    return agent, decided


async def test_an_approval_outlives_the_process_that_asked(
    cluster: DevCluster, ada: TestUser
) -> None:
    options = await cluster.agent("deployer", ada.client)
    conversation = await ada.client.open_agent(options.agent_id)
    asking = Agent(options)

    @asking.on("message")
    async def ask(ctx: Context) -> None:
        arguments = {"version": "1.4.2"}
        first = await ctx.approve("deploy", arguments, text=f"{ctx.text}?", state={"n": 1})
        # Asked again under the same id, it is the same one.
        again = await ctx.approve("deploy", arguments, key="0")
        assert again["approval_id"] == first["approval_id"]

    async with running(asking):
        await conversation.send("Deploy 1.4.2")
        request = await asked(ada)
    assert (request.name, request.text) == ("deploy", "Deploy 1.4.2?")
    assert request.arguments == {"version": "1.4.2"} and request.conversation.id == conversation.id

    assert (await request.approve())["state"] == "approved"
    assert (await request.approve())["state"] == "approved", "said again"
    with pytest.raises(ApiError):
        await request.deny()
    assert [each async for each in ada.client.approvals()] == []

    agent, decided = _deciding(options, "deploy")
    async with running(agent):
        result = await asyncio.wait_for(decided.get(), 10)
    assert result.approved and result.arguments == {"version": "1.4.2"} and result.state == {"n": 1}
    await _check_receipt(ada, result.receipt)
    await _check_lies(options, result.approval)


async def _check_receipt(ada: TestUser, receipt: Receipt) -> None:
    """It proves the decision without the service, and nothing once it is changed."""
    signer = ada.client.session.options.signer
    assert signer is not None

    def key_of(user: str, key_id: str) -> PublicKeys | None:
        fits = (user, key_id) == (ada.client.user_id, signer.key_id.hex())
        return signer.public if fits else None

    stored = Receipt.from_json(receipt.to_json())
    assert stored.verify(key_of).decisions == [(ada.client.user_id, "approved")]
    with pytest.raises(ReceiptError, match="unknown_key"):
        stored.verify(lambda user, key_id: None)
    changed = Receipt(stored.approval, stored.question.replace("1.4.2", "6.6.6"))
    with pytest.raises(ReceiptError, match="wrong_question"):
        changed.verify(key_of)


async def _check_lies(options: AgentOptions, approval: Approval) -> None:
    """The service cannot decide: no handler runs for what it says alone."""
    agent = Agent(options)
    running = await agent._start()
    told = cast(dict[str, Any], approval)
    decision = told["decisions"][0]
    lies: list[dict[str, Any]] = [
        {**told, "decisions": []},
        {**told, "decisions": [{**decision, "decision": "denied"}], "state": "denied"},
        {**told, "quorum": 2},
        {**told, "kind": "ask"},
        {**told, "digest": "A" * 43 + "="},
    ]
    for lie in lies:
        with pytest.raises(E2eeError, match="bad_signature"):
            await running.parts.approvals.result(cast(Approval, lie))
    await agent.close()


async def test_two_people_decide_and_the_handler_runs_once(
    cluster: DevCluster, ada: TestUser, bob: TestUser
) -> None:
    options = await cluster.agent("careful", ada.client)
    await ada.client.open_agent(options.agent_id)
    group = await ada.client.open_group([bob.client.user_id], title="releases")
    await group.add_agent(options.agent_id, "all")
    people = [ada.client.user_id, bob.client.user_id]
    agent, decided = _deciding(options, "deploy")
    heard = asyncio.Queue[str]()

    @agent.on("message")
    async def hear(ctx: Context) -> None:
        await heard.put(ctx.text)

    async def everything_is_handled(word: str) -> None:
        """Events of a conversation are handled in order, so all before this word are."""
        await group.send(word)
        assert await asyncio.wait_for(heard.get(), 10) == word

    async with running(agent):
        await everything_is_handled("release 1.4.2")
        told = await agent.approve(group.id, "deploy", {"version": "1.4.2"}, of=people, quorum=2)
        for_ada, for_bob = await asked(ada), await asked(bob)
        assert for_ada.id == for_bob.id == told["approval_id"]
        assert (await for_ada.approve())["state"] == "open"
        # One person is one voice, however often.
        assert (await for_ada.approve())["state"] == "open"
        await everything_is_handled("one of two")
        assert decided.empty()
        assert (await for_bob.approve())["state"] == "approved"
        result = await asyncio.wait_for(decided.get(), 10)
        await everything_is_handled("two of two")
        assert decided.empty(), "it ran once"
    assert result.approved and result.arguments == {"version": "1.4.2"}

    keys = {each.client.user_id: _public_keys(each) for each in (ada, bob)}
    stored = Receipt.from_json(result.receipt.to_json())
    proof = stored.verify(lambda user, key_id: keys[user].get(key_id))
    assert proof.decisions == [(person, "approved") for person in people]
    # The decisions of one are not enough, whatever else is said.
    halved = cast(Approval, {**stored.approval, "decisions": stored.approval["decisions"][:1]})
    with pytest.raises(ReceiptError, match="wrong_outcome"):
        Receipt(halved, stored.question).verify(lambda user, key_id: keys[user].get(key_id))


def _public_keys(user: TestUser) -> dict[str, PublicKeys]:
    signer = user.client.session.options.signer
    assert signer is not None
    return {signer.key_id.hex(): signer.public}


async def test_choices_refusals_and_withdrawals(
    cluster: DevCluster, ada: TestUser, bob: TestUser
) -> None:
    options = await cluster.agent("asker", ada.client)
    conversation = await ada.client.open_agent(options.agent_id)
    agent, decided = _deciding(options, "when")
    async with running(agent):
        await conversation.send("hello")
        await agent.approve(conversation.id, "when", {"what": "a deploy"}, choices=["Now", "Later"])
        request = await asked(ada)
        assert request.choices == ["Now", "Later"]
        await request.answer("Later")
        result = await asyncio.wait_for(decided.get(), 10)
        assert (result.outcome, result.choice) == ("answered", "Later")
        answers = list(result.receipt.answers)
        assert answers == [ada.client.user_id]

        await agent.approve(conversation.id, "when", of=[ada.client.user_id], expires="15m")
        phone = await sign_in(cluster, ada, "phone")
        await phone.devices.restore(ada.protection_password)
        on_phone = await phone.approval((await asked(ada)).id)
        await on_phone.deny("not today")
        result = await asyncio.wait_for(decided.get(), 10)
        assert (result.outcome, result.text) == ("denied", "not today")
        receipt = await (await ada.client.approval(on_phone.id)).receipt()
        assert receipt == result.receipt
        await phone.close()

        told = await agent.approve(conversation.id, "when")
        with pytest.raises(ApiError):
            await bob.client.approval(told["approval_id"])
        await agent.withdraw(told["approval_id"])
        result = await asyncio.wait_for(decided.get(), 10)
        assert (result.outcome, result.choice) == ("withdrawn", None)


async def test_an_addressed_agent_reads_the_words_of_a_decision(
    cluster: DevCluster, ada: TestUser
) -> None:
    options = await cluster.agent("addressed", ada.client)
    agent, decided = _deciding(options, "trip")

    @agent.on("message")
    async def ask(ctx: Context) -> None:
        await ctx.approve("trip", {"to": "Oslo"}, text="Go?")

    async with running(agent):
        await ada.client.open_agent(options.agent_id)
        group = await ada.client.open_group([], title="trips")
        await group.add_agent(options.agent_id)
        await group.send("plan one", to=[options.agent_id])
        await (await asked(ada)).deny("too far")
        result = await asyncio.wait_for(decided.get(), 10)
        assert (result.outcome, result.text) == ("denied", "too far")


async def test_a_question_is_an_approval_that_people_answer(
    cluster: DevCluster, ada: TestUser
) -> None:
    options = await cluster.agent("curious", ada.client)
    conversation = await ada.client.open_agent(options.agent_id)
    heard = asyncio.Queue[object]()
    agent = Agent(options)

    @agent.on("message")
    async def ask(ctx: Context) -> None:
        await ctx.ask("When?", tag="when", state={"n": 1})

    @agent.on_answer("when")
    async def answered(ctx: Context) -> None:
        answer = ctx.answer
        await heard.put((answer.question, answer.text, answer.state, ctx.decision.decided_by))
        # The person who answered is asked.
        await ctx.ask("Sure?", tag="sure", choices=["Yes"])

    @agent.on_answer("sure")
    async def sure(ctx: Context) -> None:
        await heard.put("no answer")

    @agent.on_decision("sure")
    async def refused(ctx: Context) -> None:
        await heard.put((ctx.decision.outcome, ctx.decision.question))

    async with running(agent):
        question = await answer_to(ada, lambda: conversation.send("hello"))
        assert (await asked(ada)).approval["kind"] == "ask"
        await conversation.answer(question.received, text="tonight")
        told = await asyncio.wait_for(heard.get(), 10)
        assert told == ("When?", "tonight", {"n": 1}, ada.client.user_id)
        request = await asked(ada)
        assert request.approval["asked"] == [ada.client.user_id]
        await request.deny()
        assert await asyncio.wait_for(heard.get(), 10) == ("denied", "Sure?")


async def test_a_person_signs_nothing_that_does_not_open(
    cluster: DevCluster, ada: TestUser
) -> None:
    options = await cluster.agent("liar", ada.client)
    conversation = await ada.client.open_agent(options.agent_id)
    agent = Agent(options)
    await agent.check()
    await conversation.send("hello")
    told = await agent.approve(conversation.id, "deploy")
    await agent.close()
    digest = "A" * 43 + "="
    changed: Approval = {**told, "digest": digest}
    request = await ada.client.approval_request(changed)
    assert request.fault is not None and request.text == ""
    with pytest.raises(E2eeError, match="bad_signature"):
        await request.approve()
    await (await ada.client.approval(told["approval_id"])).approve()
