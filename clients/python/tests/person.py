"""A person's program, which is killed: it shows each message, and then says that it has seen it."""

from __future__ import annotations

import asyncio
import hashlib
import os
import sys
from contextlib import aclosing

from blindpipe import Client, ClientOptions, FileStore
from blindpipe.api_errors import IdempotencyConflict
from blindpipe.client import MessageEvent
from blindpipe.e2ee import ids


async def say_seen(event: MessageEvent) -> None:
    """The id follows from the message, so that it is said once, in whichever life."""
    seen = ids.parse(event.received.message["message_id"])
    id = ids.ulid(seen[:6] + hashlib.sha256(seen).digest()[:10])
    try:
        await event.conversation.send(f"seen {event.text}", client_message_id=id)
    except IdempotencyConflict:
        # An earlier life has said it, in other bytes.
        pass


async def main(url: str, path: str) -> None:
    client = await Client.resume(ClientOptions(url, store=FileStore(path)))
    async with client, aclosing(client.events()) as events:
        async for event in events:
            if not isinstance(event, MessageEvent):
                continue
            message = event.received.message
            if message["sender"]["id"] != client.user_id:
                # One write, which a death does not cut.
                os.write(1, f"{message['client_message_id']} {event.text}\n".encode())
                await say_seen(event)


asyncio.run(main(*sys.argv[1:]))
