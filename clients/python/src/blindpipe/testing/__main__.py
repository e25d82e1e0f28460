"""A person and an agent on the development cluster, for a first try.

`new` registers both and prints the settings as lines for a shell. `ask TEXT` is that person: it
says something to the agent and prints the answer.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from contextlib import aclosing
from dataclasses import replace

from ..agent import Agent
from ..client import CaughtUp, Client, Conversation, MessageEvent
from . import DevCluster, dev_cluster

ANSWER_TIMEOUT_SECONDS = 30


async def new(cluster: DevCluster) -> None:
    """Registers a person and an agent."""
    person = await cluster.user("person")
    options = await cluster.agent("agent", person.client)
    # This is no start of the agent, so it says nothing of first contacts.
    agent = Agent(replace(options, logger=logging.Logger("new", logging.ERROR)))
    # A person encrypts for an agent whose key is there.
    await agent.check()
    await agent.close()
    await person.client.close()
    settings = {
        "BLINDPIPE_URL": options.url,
        "BLINDPIPE_AGENT_ID": options.agent_id,
        "BLINDPIPE_TOKEN": options.token,
        "BLINDPIPE_KEY": options.key,
        "SSL_CERT_FILE": cluster.ca_file,
        "NODE_EXTRA_CA_CERTS": cluster.ca_file,
        "PERSON_EMAIL": person.email,
        "PERSON_PASSWORD": person.password,
        "PERSON_PROTECTION_PASSWORD": person.protection_password,
    }
    for name, value in settings.items():
        print(f"{name}='{value}'")


async def ask(cluster: DevCluster, text: str) -> None:
    """Signs in as the person of `new`, on another device, and asks the agent."""
    client = await Client.login(
        # A first try keeps nothing, so it says nothing of first contacts.
        cluster.options(device_id="first-try", logger=logging.Logger("ask", logging.ERROR)),
        email=os.environ["PERSON_EMAIL"],
        password=os.environ["PERSON_PASSWORD"],
        turnstile_token="dev-pass",
    )
    async with client, asyncio.timeout(ANSWER_TIMEOUT_SECONDS):
        await client.devices.restore(os.environ["PERSON_PROTECTION_PASSWORD"])
        conversation = await client.open_agent(os.environ["BLINDPIPE_AGENT_ID"])
        answer = await _answer(client, conversation, text)
    opened = answer.received.opened
    if opened is None or not (opened.encrypted and opened.sender.authentic):
        sys.exit(f"the answer does not open: {answer.received.fault}")
    print(f"{answer.text}\n(encrypted, and signed by the agent's key)")


async def _answer(client: Client, conversation: Conversation, text: str) -> MessageEvent:
    sent = ""
    async with aclosing(client.events()) as events:
        async for event in events:
            if isinstance(event, CaughtUp) and not sent:
                sent = (await conversation.send(text))["message_id"]
            elif isinstance(event, MessageEvent) and sent:
                if event.received.message.get("in_reply_to") == sent:
                    return event
    raise AssertionError("the events have ended")


async def main() -> None:
    """Reads the command."""
    parser = argparse.ArgumentParser(prog="python -m blindpipe.testing", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("new", help="register a person and an agent, and print their settings")
    said = commands.add_parser("ask", help="say something to the agent, and print the answer")
    said.add_argument("text")
    arguments = parser.parse_args()
    async with dev_cluster() as cluster:
        await (new(cluster) if arguments.command == "new" else ask(cluster, arguments.text))


if __name__ == "__main__":
    asyncio.run(main())
