"""The person's side: sign-in, devices, conversations, events."""

from ..core.files import NewFile
from ..core.opened import OpenedMessage, Sender
from ..core.types import ConversationInfo, Device, Event, Grant, Message, Sent, ToolCall
from ..e2ee.consent import Sensitivity, StoredApproval, StoredConsents, Tool
from ..e2ee.room import EpochMarks
from .account import Account
from .client import Client, ClientOptions
from .conversation import Conversation, ReceivedMessage
from .devices import DeviceKeys, Devices
from .events import (
    CaughtUp,
    ClientEvent,
    DeltaEvent,
    MessageEvent,
    OtherEvent,
    ToolRequestEvent,
    TypingEvent,
)
from .tool_requests import ConsentStore, ToolRequest

__all__ = [
    "Account",
    "CaughtUp",
    "Client",
    "ClientEvent",
    "ClientOptions",
    "ConsentStore",
    "Conversation",
    "ConversationInfo",
    "DeltaEvent",
    "Device",
    "DeviceKeys",
    "Devices",
    "EpochMarks",
    "Event",
    "Grant",
    "Message",
    "MessageEvent",
    "NewFile",
    "OpenedMessage",
    "OtherEvent",
    "ReceivedMessage",
    "Sender",
    "Sent",
    "Sensitivity",
    "StoredApproval",
    "StoredConsents",
    "Tool",
    "ToolCall",
    "ToolRequest",
    "ToolRequestEvent",
    "TypingEvent",
]
