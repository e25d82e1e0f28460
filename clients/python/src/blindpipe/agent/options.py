"""The settings of an agent."""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, Literal

from ..e2ee import AgentKey
from ..e2ee.trust import Policy
from ..errors import UsageError
from ..hooks import Hooks
from ..stores.pin_store import PinStore
from .turns import BusyPolicy

DEFAULT_RETRY_DELAYS: Final = (1.0, 5.0, 25.0, 125.0)
"""Seconds before a failed handler runs again."""


@dataclass(frozen=True, kw_only=True)
class AgentOptions:
    """The settings of an agent. The secret ones are never printed."""

    url: str
    """The address of the service."""
    agent_id: str
    token: str = field(repr=False)
    """`hsk_…`"""
    key: str | Sequence[AgentKey] | None = field(default=None, repr=False)
    """`bpk_…`, several with commas, newest first. Without it, the start needs `plaintext`."""
    plaintext: Literal["refuse", "allow"] = "refuse"
    """`allow` handles what comes in clear, and answers it in clear.

    Nothing goes in clear into a conversation in which an envelope was seen.
    """
    pins: str | os.PathLike[str] | PinStore | None = None
    """A file's path, or the developer's own store. Without it, each start is a first contact."""
    manifest: Mapping[str, Any] | None = None
    """Published at the start, if it is not what the service has."""
    trust: Policy = "tofu"
    concurrency: int = 8
    """Conversations that are handled at once."""
    busy_policy: BusyPolicy = "queue"
    """A message that comes while a handler runs in its conversation.

    `queue`: it waits, or is taken by `Context.steer`. `interrupt`: it stops the handler. `drop`: it
    is not handled.
    """
    max_age: timedelta | None = None
    """The age after which a signed message is handled no more; 31 days without it, and at most."""
    retry_delays: Sequence[float] = DEFAULT_RETRY_DELAYS
    """Seconds before a failed handler runs again, one per further try."""
    on_dead_letter: Literal["skip", "stop"] = "skip"
    """After the last try: count the event as handled, or stop the agent."""
    hooks: Hooks | None = None
    logger: logging.Logger = logging.getLogger("blindpipe")
    ssl_context: ssl.SSLContext | None = None
    """For a private authority; without it, `SSL_CERT_FILE` may name one."""
    allow_http: bool = False
    """Takes an `http://` address of another machine, to which the token goes in clear."""

    @classmethod
    def from_env(cls, environment: Mapping[str, str] | None = None) -> AgentOptions:
        """Reads `BLINDPIPE_URL`, `_AGENT_ID`, `_TOKEN`, `_KEY`, `_PLAINTEXT` and `_PINS`."""
        env = os.environ if environment is None else environment

        def required(name: str) -> str:
            value = env.get(name)
            if not value:
                raise UsageError(f"{name} is not set")
            return value

        plaintext = env.get("BLINDPIPE_PLAINTEXT") or "refuse"
        if plaintext not in ("refuse", "allow"):
            raise UsageError("BLINDPIPE_PLAINTEXT is neither allow nor refuse")
        return cls(
            url=required("BLINDPIPE_URL"),
            agent_id=required("BLINDPIPE_AGENT_ID"),
            token=required("BLINDPIPE_TOKEN"),
            key=env.get("BLINDPIPE_KEY") or None,
            plaintext="allow" if plaintext == "allow" else "refuse",
            pins=env.get("BLINDPIPE_PINS") or None,
        )

    def keys(self) -> list[AgentKey]:
        """The seeds that are held, newest first."""
        if not self.key:
            return []
        return AgentKey.parse_all(self.key) if isinstance(self.key, str) else list(self.key)
