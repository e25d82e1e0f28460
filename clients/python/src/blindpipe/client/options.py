"""The settings of a person's client."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ..e2ee.consent import Tool
from ..e2ee.room import EpochMarks
from ..e2ee.trust import Policy, StoredPins
from ..hooks import Hooks
from ..stores.device_store import DeviceStore
from .account import StoredSession
from .tool_requests import ConsentStore


@dataclass(frozen=True)
class ClientOptions:
    """The settings of a person's client."""

    url: str
    device_id: str | None = None
    """This device's own id, which must outlive a reinstallation; a new one without it."""
    device_name: str | None = None
    platform: str | None = None
    trust: Policy = "tofu"
    store: DeviceStore | None = None
    """Keeps the sign-in, the device's keys, and all that must survive a restart.

    It takes the place of `pins`, `marks` and `consents`.
    """
    pins: StoredPins | None = None
    """Pins of an earlier run."""
    marks: Mapping[str, EpochMarks] = field(default_factory=dict)
    """Marks of an earlier run."""
    on_trust_changed: Callable[[], None] = lambda: None
    """Pins or marks have changed: keep what `trust.store()` and `session.marks()` give now."""
    on_session: Callable[[StoredSession], None] = lambda session: None
    """The sign-in, or its renewal: keep it, and `Client.resume` goes on with it."""
    tools: Mapping[str, Tool] = field(default_factory=dict)
    """The tools of this device, by name. A request for any other is not for it."""
    consents: ConsentStore | None = None
    """Keeps which requests were begun and approved; `store` without it, or memory."""
    searchable: bool = False
    """Sends tell the service keyed hashes of their words, and `Conversation.search` finds them.

    Then the service sees which messages of a conversation share a word, and how often.
    """
    hooks: Hooks | None = None
    logger: logging.Logger = logging.getLogger("blindpipe")
    ssl_context: ssl.SSLContext | None = None
    allow_http: bool = False
    """Takes an `http://` address of another machine, to which the token goes in clear."""
