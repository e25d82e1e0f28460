"""REST calls: retries, pacing, errors. It never logs a body, a token or a query."""

from __future__ import annotations

import asyncio
import json
import re
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, Literal
from urllib.parse import urlsplit

import aiohttp

from ..api_errors import ERROR_CLASSES, RateLimited
from ..errors import ApiError, BlindpipeError, ConnectionLost, UsageError
from ..hooks import HookCaller
from .clock import full_jitter
from .pacer import Limited, Pacer

MAX_TRIES = 5
FIRST_RETRY_MS = 250
MAX_RETRY_MS = 8_000
MAX_LIMIT_WAIT_SECONDS = 60
REQUEST_TIMEOUT_SECONDS = 60.0

Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]


@dataclass(frozen=True, slots=True)
class Call:
    """A request. `repeatable`: a repeat changes nothing, as for a send with an id."""

    method: Method
    path: str
    query: Mapping[str, str | int | None] | None = None
    body: object = None
    data: bytes | None = None
    headers: Mapping[str, str] | None = None
    repeatable: bool = False
    timeout: float = REQUEST_TIMEOUT_SECONDS
    public: bool = False
    """Public calls send no token."""


@dataclass(frozen=True, slots=True)
class RawAnswer:
    """A successful answer as it came."""

    status: int
    headers: Mapping[str, str]
    cookies: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Answer:
    """The fields of a successful answer."""

    data: Any
    next_cursor: str | None
    status: int
    body: Mapping[str, Any]
    """All fields."""


class Http:
    """Calls to one service. `close` ends its connections."""

    def __init__(
        self,
        url: str,
        hooks: HookCaller,
        token: Callable[[], Awaitable[str | None]],
        renew: Callable[[], Awaitable[bool]] | None = None,
        ssl_context: ssl.SSLContext | None = None,
        *,
        allow_http: bool = False,
    ) -> None:
        self.url = checked_url(url, allow_http)
        self._hooks = hooks
        self._token = token
        self._renew = renew
        self._pacer = Pacer(hooks)
        self._ssl = ssl_context
        self._session: aiohttp.ClientSession | None = None

    def session(self) -> aiohttp.ClientSession:
        """The connections, which belong to the running loop."""
        if self._session is None or self._session.closed:
            # A context reads all authorities of the machine, which takes a while.
            is_secure = self.url.startswith("https:")
            context = self._ssl or (ssl.create_default_context() if is_secure else True)
            connector = aiohttp.TCPConnector(ssl=context)
            # An account keeps its own cookies.
            jar = aiohttp.DummyCookieJar()
            self._session = aiohttp.ClientSession(connector=connector, cookie_jar=jar)
        return self._session

    async def close(self) -> None:
        """Closes the connections. Another call opens new ones."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def data(self, call: Call) -> Any:
        """The `data` of an answer."""
        return (await self.call(call)).data

    async def call(self, call: Call) -> Answer:
        """The answer's fields."""
        raw = await self.raw(call)
        try:
            body = json.loads(raw.body)
        except ValueError as error:
            raise ConnectionLost("the answer was cut short") from error
        return Answer(body.get("data"), body.get("next_cursor"), raw.status, body)

    async def pages(
        self, path: str, query: Mapping[str, str | int | None] | None = None
    ) -> AsyncIterator[Any]:
        """The items of all pages."""
        cursor: str | None = None
        while True:
            page = await self.call(Call("GET", path, {**(query or {}), "cursor": cursor}))
            for item in page.data:
                yield item
            cursor = page.next_cursor
            if not cursor:
                return

    async def raw(self, call: Call) -> RawAnswer:
        """The successful answer itself. Every try sends the same bytes."""
        data = call.data if call.body is None else _encoded(call.body)
        lane = f"{call.method} {_route(call.path)}"
        deadline = time.monotonic() + MAX_LIMIT_WAIT_SECONDS
        state = _Tries()

        async def attempts() -> RawAnswer | Limited:
            while True:
                outcome = await self._attempt(call, data, lane)
                if isinstance(outcome, RawAnswer):
                    return outcome
                if isinstance(outcome, RateLimited):
                    return _limited(outcome)
                await self._wait_or_raise(call, lane, outcome, state)

        return await self._pacer.run(lane, deadline, attempts)

    async def _attempt(
        self, call: Call, data: bytes | None, lane: str
    ) -> RawAnswer | BlindpipeError:
        headers = dict(call.headers or {})
        if call.body is not None:
            headers["content-type"] = "application/json"
        token = None if call.public else await self._token()
        if token:
            headers["authorization"] = f"Bearer {token}"
        query = {
            name: str(value) for name, value in (call.query or {}).items() if value is not None
        }
        try:
            async with self.session().request(
                call.method,
                self.url + call.path,
                params=query,
                data=data,
                headers=headers,
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=call.timeout),
            ) as response:
                body = await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return connection_lost(error)
        self._pacer.observe(lane, response.headers.get("ratelimit"))
        if response.status < 300:
            cookies = {name: morsel.value for name, morsel in response.cookies.items()}
            return RawAnswer(response.status, response.headers, cookies, body)
        return _error_of(response.status, response.headers, body)

    async def _wait_or_raise(
        self, call: Call, lane: str, error: BlindpipeError, state: _Tries
    ) -> None:
        if error.code == "UNAUTHORIZED" and not state.renewed and not call.public:
            state.renewed = True
            if self._renew is not None and await self._renew():
                return
            raise error
        state.count += 1
        if not _may_repeat(call) or not _is_passing(error) or state.count >= MAX_TRIES:
            raise error
        hinted = float(error.params.get("retry_after_ms") or 0)
        wait_ms = max(hinted, full_jitter(state.count - 1, FIRST_RETRY_MS, MAX_RETRY_MS))
        self._hooks.call("retry", attempt=state.count, wait_ms=round(wait_ms), route=lane)
        await asyncio.sleep(wait_ms / 1000)


def checked_url(url: str, allow_http: bool) -> str:
    """The address without a slash at its end.

    Raises `UsageError` for one to which tokens would go in clear over a network.
    """
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        raise UsageError("the address of the service is no URL") from None
    if parts.scheme not in ("http", "https") or not host:
        raise UsageError("the address of the service begins with https://")
    if parts.scheme == "http" and not allow_http and not _is_loopback(host):
        raise UsageError("http:// is for this machine only; allow_http sends tokens in clear")
    return url.rstrip("/")


def _is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


@dataclass(slots=True)
class _Tries:
    count: int = 0
    renewed: bool = False


def _encoded(body: object) -> bytes:
    try:
        text = json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return text.encode()
    except (TypeError, ValueError) as error:
        raise UsageError(f"this is no JSON: {type(error).__name__}") from None


def _limited(error: RateLimited) -> Limited:
    """The wait of a refusal, and up to a tenth more, so that not all come back at once."""
    hinted = float(error.params.get("retry_after_ms") or 1000)
    wait_ms = hinted + full_jitter(0, round(hinted / 10), round(hinted / 10))
    return Limited(error, wait_ms, str(error.params.get("scope") or ""))


def _may_repeat(call: Call) -> bool:
    """GETs, PUTs, and sends with an id."""
    return call.repeatable or call.method in ("GET", "PUT")


def _is_passing(error: BlindpipeError) -> bool:
    if isinstance(error, ConnectionLost):
        # A certificate does not become a trusted one within seconds.
        return not error.is_untrusted
    return error.status in (502, 503, 504)


def connection_lost(error: BaseException) -> ConnectionLost:
    """The error of a connection, with its cause."""
    text, is_untrusted = "the connection was lost", False
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        why, is_untrusted = error.certificate_error, True
        reason = getattr(why, "verify_message", "") or type(why).__name__
        text = (
            f"the server's certificate is not trusted: {reason}; "
            "SSL_CERT_FILE or ssl_context names an authority"
        )
    elif isinstance(error, TimeoutError):
        text = "the connection was lost: no answer came in time"
    elif isinstance(error, aiohttp.ClientConnectorError):
        text = "the connection was lost: the server cannot be reached"
    lost = ConnectionLost(text, is_untrusted=is_untrusted)
    lost.__cause__ = error
    return lost


def _route(path: str) -> str:
    """Ids leave the path: budgets are counted per route, not per id."""
    return re.sub(r"/[0-9A-Za-z-]*[0-9][0-9A-Za-z-]{9,}", "/:id", path)


def _error_of(status: int, headers: Mapping[str, str], body: bytes) -> BlindpipeError:
    try:
        told = json.loads(body).get("error") or {}
    except (ValueError, AttributeError):
        told = {}
    params = dict(told.get("params") or {})
    after = headers.get("retry-after", "")
    if after.isdecimal():
        params.setdefault("retry_after_ms", int(after) * 1000)
    code = told.get("code") or f"HTTP_{status}"
    message = told.get("message") or "the server refused"
    return make_error(code, status, message, params, headers.get("x-request-id"))


def make_error(
    code: str, status: int, message: str, params: Mapping[str, Any], request_id: str | None
) -> ApiError:
    """The error of a code, of the class of that code."""
    return ERROR_CLASSES.get(code, ApiError)(code, status, message, params, request_id)
