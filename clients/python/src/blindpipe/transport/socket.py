"""A socket to `/ws` that comes back: handshake, liveness, reconnects."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import aiohttp

from ..errors import BlindpipeError, Closed, ConnectionLost
from ..hooks import HookCaller
from .clock import full_jitter
from .http import Http, connection_lost, make_error

_T = TypeVar("_T")

Frame = dict[str, Any]
"""A frame of the server or the client; `type` says which."""

FIRST_RECONNECT_WAIT_MS: Final = 500
MAX_RECONNECT_WAIT_MS: Final = 30_000
FIRST_RENEWAL_WAIT_MS: Final = 1_000
MAX_RENEWAL_WAIT_MS: Final = 30_000
LIMIT_WAIT_MS: Final = 10_000
FLOOD_WAIT_MS: Final = 5_000
HANDSHAKE_TIMEOUT_SECONDS: Final = 15.0
SILENCE_GRACE_MS: Final = 15_000
DEFAULT_HEARTBEAT_MS: Final = 25_000
CLOSE_TIMEOUT_SECONDS: Final = 2.0
MAX_FRAME_BYTES: Final = 4 * 1024 * 1024
NO_STATUS_CODE: Final = 1006
DEAD_CODE: Final = 4999
"""A local verdict: the connection said nothing for too long."""

_FINAL_CODES = frozenset((4400, 4403, 1002, 1003, 1007, 1009))
_IMMEDIATE_CODES = frozenset((1011, 1012, 1013, 4410))
_END_TYPES = (
    aiohttp.WSMsgType.CLOSING,
    aiohttp.WSMsgType.CLOSED,
    aiohttp.WSMsgType.ERROR,
)


async def _nobody() -> Sequence[str]:
    return ()


def _unheard(_was_silent: bool) -> None:
    """The listener of those whose connections share nothing."""


async def _or(otherwise: _T, asked: Awaitable[_T]) -> _T:
    """The answer, or what is taken where none came."""
    try:
        return await asked
    except BlindpipeError:
        return otherwise


@dataclass(frozen=True, slots=True)
class SocketOptions:
    """The questions of a socket to its owner."""

    http: Http
    hooks: HookCaller
    auth: Callable[[], Awaitable[Frame]]
    """The `auth` frame of this moment."""
    renew: Callable[[], Awaitable[bool]]
    """The renewal that a 4401 asks for: true if a new token is there, false if it is refused.

    Any other failure raises.
    """
    on_frame: Callable[[Frame, int], None]
    """A frame, and the length of its text."""
    on_ready: Callable[[Frame], None]
    """A new connection begins, before its first event."""
    on_lost: Callable[[bool], None] = _unheard
    """A connection has ended; whether the client took it for dead."""
    holders: Callable[[], Awaitable[Sequence[str]]] = _nobody
    """The ids of the connections that hold the places, for a 4409."""


@dataclass(frozen=True, slots=True)
class _Ending:
    code: int
    after_ms: float | None


class Silence:
    """Says when a connection was silent for too long, at the cost of no timer per frame."""

    def __init__(self) -> None:
        self.is_dead = asyncio.Event()
        self._limit_seconds = 0.0
        self._last = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, limit_seconds: float) -> None:
        """Waits anew, at most so long for each sign of life."""
        self.end()
        self.is_dead.clear()
        self._limit_seconds = limit_seconds
        self._loop = asyncio.get_running_loop()
        self.heard()
        self._wait()

    def heard(self) -> None:
        """A sign of life."""
        if self._loop is not None:
            self._last = self._loop.time()

    def _wait(self) -> None:
        loop, ends = asyncio.get_running_loop(), self._last + self._limit_seconds
        if loop.time() >= ends:
            self.is_dead.set()
        else:
            self._timer = loop.call_at(ends, self._wait)

    def end(self) -> None:
        """Waits no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Socket:
    """Stays connected while `run` runs."""

    def __init__(self, options: SocketOptions) -> None:
        self._options = options
        self._current: aiohttp.ClientWebSocketResponse | None = None
        self._outgoing: asyncio.Queue[str] = asyncio.Queue()
        self._ready = False
        self._attempt = 0
        self._failed_renewals = 0
        self._reference = 0
        self._after_ms: float | None = None
        self._closing = asyncio.Event()
        self._dropping = asyncio.Event()
        self._answers: dict[str, asyncio.Future[Frame]] = {}
        self._streams: dict[str, Callable[[Frame], None]] = {}
        self.connection = 0
        """The number of connections so far."""
        self._renewals: set[asyncio.Task[None]] = set()
        self._silence = Silence()

    @property
    def is_ready(self) -> bool:
        """Whether frames reach the server now."""
        return self._ready

    async def run(self) -> None:
        """Returns after `close`; raises `Closed` where the server forbids another connection."""
        while not self._closing.is_set():
            ending = await self._connect_once()
            self._ready = False
            self._fail_answers()
            if self._closing.is_set():
                return
            wait_ms = await self._wait_after(ending)
            await self._pause(wait_ms / 1000)

    async def _pause(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._closing.wait(), seconds)
        except TimeoutError:
            pass

    async def _connect_once(self) -> _Ending:
        self._after_ms, self._dropping = None, asyncio.Event()
        address = "ws" + self._options.http.url.removeprefix("http") + "/ws"
        try:
            auth = await self._options.auth()
            if self._closing.is_set():
                return _Ending(NO_STATUS_CODE, None)
            socket = await self._connected(address)
        except Closed:
            raise
        except (aiohttp.ClientError, BlindpipeError, TimeoutError, OSError) as error:
            lost = error if isinstance(error, BlindpipeError) else connection_lost(error)
            if isinstance(lost, ConnectionLost) and lost.is_untrusted:
                self._options.hooks.warn(lost.message)
            return _Ending(NO_STATUS_CODE, None)
        self._current, self._outgoing = socket, asyncio.Queue()
        writer = asyncio.create_task(self._write(socket, self._outgoing, json.dumps(auth)))
        try:
            code = await self._read_until_end(socket)
        finally:
            writer.cancel()
            self._current, self._ready = None, False
        self._options.on_lost(code == DEAD_CODE)
        await self._hang_up(socket)
        self._options.hooks.call("disconnected", code=code)
        # A connection that its owner left is no failure, so the next one comes at once.
        return _Ending(code, 0.0 if self._dropping.is_set() else self._after_ms)

    async def _connected(self, address: str) -> aiohttp.ClientWebSocketResponse:
        """A new connection. Raises `TimeoutError` if this is closed before it is there."""

        async def connect() -> aiohttp.ClientWebSocketResponse:
            return await self._options.http.session().ws_connect(
                address, autoping=False, autoclose=False, max_msg_size=MAX_FRAME_BYTES
            )

        connecting = asyncio.create_task(connect())
        closing = asyncio.create_task(self._closing.wait())
        both: tuple[asyncio.Task[Any], ...] = (connecting, closing)
        try:
            first = asyncio.FIRST_COMPLETED
            await asyncio.wait(both, timeout=HANDSHAKE_TIMEOUT_SECONDS, return_when=first)
            if not connecting.done():
                raise TimeoutError
            return connecting.result()
        finally:
            for task in both:
                task.cancel()

    async def _hang_up(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        try:
            await asyncio.wait_for(socket.close(code=1000), CLOSE_TIMEOUT_SECONDS)
        except (aiohttp.ClientError, TimeoutError, OSError):
            pass

    async def _write(
        self, socket: aiohttp.ClientWebSocketResponse, frames: asyncio.Queue[str], first: str
    ) -> None:
        try:
            await socket.send_str(first)
            while True:
                await socket.send_str(await frames.get())
        except (aiohttp.ClientError, OSError):
            # The reader sees the end of the connection too.
            return

    async def _read_until_end(self, socket: aiohttp.ClientWebSocketResponse) -> int:
        """The close code, or the client's own verdict."""
        self._silence.begin(HANDSHAKE_TIMEOUT_SECONDS)
        reading = asyncio.create_task(self._read(socket))
        events = (self._silence.is_dead, self._closing, self._dropping)
        stops = [asyncio.create_task(event.wait()) for event in events]
        try:
            await asyncio.wait((reading, *stops), return_when=asyncio.FIRST_COMPLETED)
            # A process that was frozen hears the server's farewell long after it.
            if self._silence.is_dead.is_set():
                return DEAD_CODE
            if reading.done():
                return reading.result()
            if self._closing.is_set():
                await self._drain()
            return 1000
        finally:
            self._silence.end()
            for task in (reading, *stops):
                task.cancel()
            await asyncio.gather(reading, *stops, return_exceptions=True)

    async def _drain(self) -> None:
        """Frames that were written before a close still go out."""
        for _ in range(100):
            if self._outgoing.empty():
                break
            await asyncio.sleep(0.01)

    async def _read(self, socket: aiohttp.ClientWebSocketResponse) -> int:
        while True:
            # The server's pings are signs of life too, so they are answered here.
            message = await socket.receive()
            self._silence.heard()
            if message.type == aiohttp.WSMsgType.CLOSE:
                # Read before the client's own farewell, which may fail and would hide this code.
                return int(message.data or NO_STATUS_CODE)
            if message.type in _END_TYPES:
                return int(socket.close_code or NO_STATUS_CODE)
            if message.type == aiohttp.WSMsgType.PING:
                await socket.pong(message.data)
            if message.type == aiohttp.WSMsgType.TEXT and not self._takes(message.data):
                return NO_STATUS_CODE

    def _takes(self, text: str) -> bool:
        """False for a frame of another shape: what it was to say comes with another connection."""
        try:
            self._take(json.loads(text), len(text))
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            self._options.hooks.warn(f"a frame was of another shape: {type(error).__name__}")
            return False
        return True

    def _take(self, frame: Frame, size: int) -> None:
        match frame["type"]:
            case "ready":
                self._ready = True
                self.connection += 1
                heartbeat_ms = frame.get("heartbeat_interval_ms") or DEFAULT_HEARTBEAT_MS
                self._silence.begin((heartbeat_ms + SILENCE_GRACE_MS) / 1000)
                self._options.hooks.call("connected")
                return self._options.on_ready(frame)
            case "caught_up":
                self._attempt = 0
                self._options.hooks.call("caught_up")
            case "reconnect":
                self._after_ms = float(frame.get("after_ms") or 0)
            case "auth.expiring":
                renewal = asyncio.create_task(self._renew_auth())
                self._renewals.add(renewal)
                renewal.add_done_callback(self._renewals.discard)
                return None
            case "message.sent" | "artifact.requested" | "artifact.responded" | "error":
                return self._answer(frame)
            case "stream.cancel" if frame["stream_id"] in self._streams:
                return self._streams[frame["stream_id"]](frame)
        self._options.on_frame(frame, size)

    async def _renew_auth(self) -> None:
        try:
            if await self._options.renew():
                auth = await self._options.auth()
                self.send({"type": "auth.renew", "access_token": auth.get("access_token")})
        except BlindpipeError:
            # The server ends the connection at the token's end; then the next one says why.
            return

    def _answer(self, frame: Frame) -> None:
        waiting = self._answers.pop(str(frame.get("ref")), None)
        if waiting is None and frame["type"] == "error" and frame.get("stream_id") in self._streams:
            return self._streams[frame["stream_id"]](frame)
        if waiting is None or waiting.done():
            return
        if frame["type"] != "error":
            return waiting.set_result(frame)
        error = frame["error"]
        params = error.get("params") or {}
        waiting.set_exception(make_error(error["code"], 0, error["message"], params, None))

    def _fail_answers(self) -> None:
        for waiting in self._answers.values():
            if not waiting.done():
                waiting.set_exception(ConnectionLost())
        self._answers.clear()

    def send(self, frame: Frame) -> bool:
        """Writes a frame; false while there is no connection."""
        if not self._ready or self._current is None or self._current.closed:
            return False
        self._outgoing.put_nowait(json.dumps(frame, ensure_ascii=False, separators=(",", ":")))
        return True

    async def request(self, frame: Frame, timeout: float) -> Frame:
        """Writes a frame and waits for its answer."""
        self._reference += 1
        reference = str(self._reference)
        waiting: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()
        self._answers[reference] = waiting
        try:
            if not self.send({**frame, "ref": reference}):
                raise ConnectionLost()
            return await asyncio.wait_for(waiting, timeout)
        except TimeoutError:
            raise ConnectionLost() from None
        finally:
            self._answers.pop(reference, None)

    def watch(self, stream_id: str, hear: Callable[[Frame], None] | None) -> None:
        """Has `hear` told of refusals and of the end of a stream, or nobody any more."""
        if hear is None:
            self._streams.pop(stream_id, None)
        else:
            self._streams[stream_id] = hear

    def drop(self) -> None:
        """Leaves this connection; `run` makes another one."""
        self._dropping.set()

    def close(self) -> None:
        """Ends `run`."""
        self._closing.set()

    async def _wait_after(self, ending: _Ending) -> float:
        """Milliseconds before the next connection. Raises `Closed` where there is to be none."""
        code = ending.code
        if ending.after_ms is not None:
            return ending.after_ms
        if code == 4401:
            return await self._wait_after_refusal(code)
        if code in _FINAL_CODES:
            raise Closed("the server ended the connection for good", code)
        if code == 4409:
            holders = list(await _or((), self._options.holders()))
            self._options.hooks.call("disconnected", code=code, holders=holders)
            return LIMIT_WAIT_MS
        if code == 4429:
            return FLOOD_WAIT_MS
        self._attempt += 1
        # At once, but a server that ends every connection so is not asked without a pause.
        if code in _IMMEDIATE_CODES and self._attempt == 1:
            return 0
        return full_jitter(self._attempt - 1, FIRST_RECONNECT_WAIT_MS, MAX_RECONNECT_WAIT_MS)

    async def _wait_after_refusal(self, code: int) -> float:
        """The server took the credential for ended. Only it can say that there is no other."""
        try:
            is_renewed = await self._options.renew()
        except BlindpipeError:
            self._failed_renewals += 1
            failed = self._failed_renewals - 1
            return full_jitter(failed, FIRST_RENEWAL_WAIT_MS, MAX_RENEWAL_WAIT_MS)
        self._failed_renewals = 0
        if is_renewed:
            return 0
        raise Closed("the credential was refused", code)
