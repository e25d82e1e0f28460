"""Agents and people on Blindpipe, encrypted end to end with `bp1`.

`Agent` is the side of a program that answers, `Client` that of a person. `blindpipe.api_errors` has
a class per refusal of the service. `blindpipe.e2ee` is the encryption alone, `blindpipe.testing` a
real cluster for tests.
"""

from .agent import (
    Agent,
    AgentOptions,
    CallResult,
    Context,
    FilePins,
    MessageStream,
    PinStore,
    PostgresStore,
    SharedFolder,
    SharedPins,
    SharedStore,
    WebhookAnswer,
    verify_delivery,
)
from .api_errors import RateLimited
from .client import (
    Client,
    ClientOptions,
    ContentView,
    Conversation,
    DeviceStore,
    FileStore,
    NewFile,
    ReceivedMessage,
    TimelineItem,
    ToolRequest,
    timeline,
)
from .errors import (
    ApiError,
    BlindpipeError,
    Closed,
    ConnectionLost,
    DecryptError,
    IdConflict,
    KeyUnavailable,
    NotApproved,
    UsageError,
)
from .hooks import Hooks

__all__ = [
    "Agent",
    "AgentOptions",
    "ApiError",
    "BlindpipeError",
    "CallResult",
    "Client",
    "ClientOptions",
    "Closed",
    "ConnectionLost",
    "ContentView",
    "Context",
    "Conversation",
    "DecryptError",
    "DeviceStore",
    "FilePins",
    "FileStore",
    "Hooks",
    "IdConflict",
    "KeyUnavailable",
    "MessageStream",
    "NewFile",
    "NotApproved",
    "PinStore",
    "PostgresStore",
    "RateLimited",
    "ReceivedMessage",
    "SharedFolder",
    "SharedPins",
    "SharedStore",
    "TimelineItem",
    "ToolRequest",
    "UsageError",
    "WebhookAnswer",
    "timeline",
    "verify_delivery",
]
