"""An agent with the official server of A2A, for the tests of `bp bridge a2a`: a2a_server.py PORT [mute]

`mute` has no streams: the bridge asks for the task.
"""

import asyncio
import sys

import uvicorn
from a2a.helpers.proto_helpers import new_raw_part, new_task_from_user_message, new_text_part
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import AgentCapabilities, AgentCard, AgentInterface, AgentSkill, TaskState
from starlette.applications import Starlette

URL = f"http://127.0.0.1:{sys.argv[1]}"
CARD = AgentCard(
    name="parrot",
    description="Repeats, asks, and waits.",
    version="1",
    supported_interfaces=[AgentInterface(url=f"{URL}/rpc", protocol_binding="JSONRPC", protocol_version="1.0")],
    capabilities=AgentCapabilities(streaming="mute" not in sys.argv),
    default_input_modes=["text/plain"],
    default_output_modes=["text/plain"],
    skills=[AgentSkill(id="talk", name="talk", description="Repeats.", tags=["test"])],
)


class Parrot(AgentExecutor):
    async def execute(self, context: RequestContext, events: EventQueue) -> None:
        said = context.get_user_input()
        task = context.current_task
        if task is None:
            task = new_task_from_user_message(context.message)
            await events.enqueue_event(task)
        waited = task.status.state
        updater = TaskUpdater(events, task.id, task.context_id)
        await updater.start_work()
        if waited == TaskState.TASK_STATE_INPUT_REQUIRED:
            await updater.add_artifact([new_text_part(f"chosen: {said}")])
        elif waited == TaskState.TASK_STATE_AUTH_REQUIRED:
            verdict, proof = said.split("\n")[0], "receipt" in str(context.message.parts[1].data)
            await updater.add_artifact([new_text_part(f"{verdict}, proven: {proof}")])
        elif said == "ask":
            await updater.requires_input(updater.new_agent_message([new_text_part("Which colour?")]))
            return
        elif said == "pay":
            await updater.requires_auth(updater.new_agent_message([new_text_part("Pay 5?")]))
            return
        elif said == "file":
            await updater.add_artifact([new_raw_part(b"a,b\n", filename="table.csv", media_type="text/csv")])
            await updater.complete(updater.new_agent_message([new_text_part("There it is.")]))
            return
        elif said == "grow":
            for at, piece in enumerate(["one ", "two ", "three"]):
                await updater.add_artifact([new_text_part(piece)], artifact_id="words", append=at > 0)
                # Somebody sees each piece before the next one.
                while await asked.get() != task.id:
                    pass
        elif said == "slow":
            print("slow", flush=True)
            await asyncio.sleep(600)
        else:
            for at, piece in enumerate(["You said: ", said]):
                await updater.add_artifact([new_text_part(piece)], artifact_id="words", append=at > 0)
        await updater.complete()

    async def cancel(self, context: RequestContext, events: EventQueue) -> None:
        print("cancelled", flush=True)
        await TaskUpdater(events, context.task_id, context.context_id).cancel()


# The tasks that clients ask for, each time.
asked = asyncio.Queue()


class Handler(DefaultRequestHandler):
    async def on_get_task(self, params, context):
        task = await super().on_get_task(params, context)
        asked.put_nowait(params.id)
        return task


handler = Handler(agent_executor=Parrot(), task_store=InMemoryTaskStore(), agent_card=CARD)
routes = [*create_agent_card_routes(CARD), *create_jsonrpc_routes(handler, "/rpc")]
uvicorn.run(Starlette(routes=routes), host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
