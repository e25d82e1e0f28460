"""The person's side: sign-in, devices, conversations, events."""

from ..core.files import NewFile
from ..core.session import OpenedMessage, Sender
from ..core.types import ConversationInfo, Device, Event, Grant, Message, Sent, ToolCall
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
from .tool_requests import BegunStore, MemoryBegun, ToolRequest

__all__ = [
    "Account",
    "BegunStore",
    "CaughtUp",
    "Client",
    "ClientEvent",
    "ClientOptions",
    "Conversation",
    "ConversationInfo",
    "DeltaEvent",
    "Device",
    "DeviceKeys",
    "Devices",
    "Event",
    "Grant",
    "MemoryBegun",
    "Message",
    "MessageEvent",
    "NewFile",
    "OpenedMessage",
    "OtherEvent",
    "ReceivedMessage",
    "Sender",
    "Sent",
    "ToolCall",
    "ToolRequest",
    "ToolRequestEvent",
    "TypingEvent",
]
