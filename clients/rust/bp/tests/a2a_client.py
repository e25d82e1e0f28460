"""The official client of A2A, for the tests of `bp bridge a2a`: a2a_client.py URL BINDING

Each line of standard input is a call; what comes of it are lines, and an empty one at the end.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from typing import Any

from a2a.client import ClientConfig, ClientFactory
from a2a.types import (
    CancelTaskRequest,
    DeleteTaskPushNotificationConfigRequest,
    GetTaskPushNotificationConfigRequest,
    GetTaskRequest,
    ListTaskPushNotificationConfigsRequest,
    Message,
    Part,
    Role,
    SendMessageConfiguration,
    SendMessageRequest,
    SubscribeToTaskRequest,
    TaskPushNotificationConfig,
)
from google.protobuf.json_format import MessageToDict, ParseDict


def message(number: int, call: dict[str, Any]) -> SendMessageRequest:
    part = Part(raw=call["raw"].encode(), filename="notes.txt") if "raw" in call else Part(text=call["text"])
    said = Message(message_id=str(number), role=Role.ROLE_USER, parts=[part], task_id=call.get("task", ""))
    settings = SendMessageConfiguration(return_immediately=call.get("soon", False))
    if "push" in call:
        ParseDict(call["push"], settings.task_push_notification_config)
    return SendMessageRequest(message=said, configuration=settings)


async def results(clients: dict[bool, Any], number: int, call: dict[str, Any]) -> AsyncIterator[Any]:
    client = clients[call.get("stream", True)]
    match call["do"]:
        case "send":
            async for step in client.send_message(message(number, call)):
                yield step
        case "get":
            yield await client.get_task(GetTaskRequest(id=call["task"]))
        case "cancel":
            yield await client.cancel_task(CancelTaskRequest(id=call["task"]))
        case "push":
            yield await client.create_task_push_notification_config(
                ParseDict(call["push"], TaskPushNotificationConfig())
            )
        case "pushes":
            yield await client.list_task_push_notification_configs(
                ListTaskPushNotificationConfigsRequest(task_id=call["task"])
            )
        case "push_config":
            yield await client.get_task_push_notification_config(
                GetTaskPushNotificationConfigRequest(task_id=call["task"], id=call["id"])
            )
        case "push_no_more":
            await client.delete_task_push_notification_config(
                DeleteTaskPushNotificationConfigRequest(task_id=call["task"], id=call["id"])
            )
        case "subscribe":
            async for step in client.subscribe(SubscribeToTaskRequest(id=call["task"])):
                yield step


async def main(url: str, binding: str) -> None:
    clients = {}
    for streaming in (True, False):
        config = ClientConfig(streaming=streaming, supported_protocol_bindings=[binding])
        clients[streaming] = await ClientFactory(config).create_from_url(url)
    loop = asyncio.get_running_loop()
    number = 0
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        number += 1
        try:
            async for step in results(clients, number, json.loads(line)):
                print(json.dumps(MessageToDict(step)), flush=True)
        except Exception as error:
            print(json.dumps({"error": type(error).__name__, "told": str(error)}), flush=True)
        print(flush=True)


asyncio.run(main(*sys.argv[1:]))
