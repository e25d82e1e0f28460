"""A process that dies at one of its await points."""

from __future__ import annotations

import asyncio
import ctypes
import os
import random
import selectors
import socket
from collections.abc import Callable, Coroutine, Generator
from math import inf
from types import TracebackType
from typing import Any

from blindpipe import Agent, AgentOptions, Context

CRASHES = int(os.environ.get("CRASHES", 40))
"""`CRASHES=1000` for the long form."""
LANES = 4

# A dead loop stays as it was: collected, its `finally` would run, as no dead process's does.
_GRAVEYARD: list[object] = []
# Nor may the interpreter clear it when it ends.
ctypes.pythonapi.Py_IncRef(ctypes.py_object(_GRAVEYARD))


class Death(SystemExit):
    """Leaves the loop at once, past all that awaits."""


class MortalLoop:
    """Runs a coroutine in a loop of its own; after `steps` steps of its tasks nothing more runs."""

    def __init__(self, steps: float = inf) -> None:
        self._left = steps
        self.taken = 0

    def die(self) -> None:
        """The next step is the last."""
        self._left = self.taken

    def step(self) -> None:
        self.taken += 1
        if self.taken > self._left:
            raise Death

    def run(self, main: Callable[[], Coroutine[Any, Any, None]], seconds: float) -> bool:
        """True if it died; false if it came to its end. Nothing lives longer than `seconds`."""
        loop = asyncio.SelectorEventLoop(selectors.DefaultSelector())

        def factory(
            loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any
        ) -> asyncio.Task[Any]:
            return asyncio.Task(_Steps(coroutine, self), loop=loop, **options)

        def expire() -> None:
            raise Death

        loop.set_task_factory(factory)
        # Tasks that died are reported by nobody.
        loop.set_exception_handler(lambda *_: None)
        timer = loop.call_later(seconds, expire)
        task = loop.create_task(main())
        try:
            loop.run_until_complete(task)
        except Death:
            _cut_off(loop)
            _GRAVEYARD.append((loop, task, asyncio.all_tasks(loop), main))
            return True
        timer.cancel()
        loop.close()
        return False


def _cut_off(loop: asyncio.SelectorEventLoop) -> None:
    """The system closes a dead process's connections, without a farewell."""
    for key in list(loop._selector.get_map().values()):  # type: ignore[attr-defined]
        with socket.socket(fileno=os.dup(key.fd)) as connection:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue


class _Steps(Coroutine[Any, Any, Any]):
    """Counts each step of a task, between one await and the next."""

    def __init__(self, inner: Coroutine[Any, Any, Any], world: MortalLoop) -> None:
        self._inner = inner
        self._world = world

    def send(self, value: Any) -> Any:
        self._world.step()
        return self._inner.send(value)

    def throw(
        self,
        kind: Any,
        value: Any = None,
        traceback: TracebackType | None = None,
    ) -> Any:
        self._world.step()
        return self._inner.throw(kind if value is None else value)

    def close(self) -> None:
        self._inner.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        raise NotImplementedError


def two_replies(options: AgentOptions, until_handled: str | None = None) -> Agent:
    """Two replies with awaits around them, and never the same text twice."""
    agent = Agent(options)

    @agent.on("message")
    async def answer(ctx: Context) -> None:
        await asyncio.sleep(0)
        await ctx.reply(f"first to {ctx.text} {random.random()}")
        await asyncio.sleep(0)
        await ctx.reply(f"second to {ctx.text} {random.random()}")
        await asyncio.sleep(0)
        if ctx.text == until_handled:
            asyncio.get_running_loop().call_later(0.02, agent.stop)

    return agent
