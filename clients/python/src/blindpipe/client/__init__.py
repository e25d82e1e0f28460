"""The person's side: sign-in, devices, conversations, events."""

from ..core.approvals import Approval, Receipt
from ..core.content import ContentKind, ContentView
from ..core.files import NewFile, Thumbnail
from ..core.opened import OpenedMessage, Sender
from ..core.types import (
    ConversationInfo,
    Device,
    Event,
    Grant,
    LiveStream,
    Message,
    Sent,
    SessionChange,
    SessionInfo,
    ToolCall,
)
from ..e2ee.consent import Sensitivity, StoredApproval, StoredConsents, Tool
from ..e2ee.room import EpochMarks
from ..stores.device_store import (
    DeviceSession,
    DeviceState,
    DeviceStore,
    FileStore,
    StoredKeys,
    StoreOwner,
)
from .account import Account, StoredSession
from .agents import Agents
from .approvals import ApprovalRequest
from .client import Client
from .conversation import Conversation, HistoryPage, ReceivedMessage
from .devices import DeviceKeys, Devices
from .events import (
    CaughtUp,
    CheckpointEvent,
    ClientEvent,
    DeltaEvent,
    MessageEvent,
    OtherEvent,
    StatusEvent,
    StreamCancelled,
    ToolRequestEvent,
    TypingEvent,
)
from .options import ClientOptions
from .passkeys import Authenticator
from .sessions import Sessions
from .timeline import Reactions, TimelineItem, timeline
from .tool_requests import ConsentStore, ToolRequest

__all__ = [
    "Account",
    "Agents",
    "Approval",
    "ApprovalRequest",
    "Authenticator",
    "CaughtUp",
    "CheckpointEvent",
    "Client",
    "ClientEvent",
    "ClientOptions",
    "ConsentStore",
    "ContentKind",
    "ContentView",
    "Conversation",
    "ConversationInfo",
    "DeltaEvent",
    "Device",
    "DeviceKeys",
    "DeviceSession",
    "DeviceState",
    "DeviceStore",
    "Devices",
    "EpochMarks",
    "Event",
    "FileStore",
    "Grant",
    "HistoryPage",
    "LiveStream",
    "Message",
    "MessageEvent",
    "NewFile",
    "OpenedMessage",
    "OtherEvent",
    "Reactions",
    "Receipt",
    "ReceivedMessage",
    "Sender",
    "Sent",
    "Sensitivity",
    "SessionChange",
    "SessionInfo",
    "Sessions",
    "StatusEvent",
    "StoredApproval",
    "StoreOwner",
    "StoredConsents",
    "StoredKeys",
    "StoredSession",
    "StreamCancelled",
    "Thumbnail",
    "TimelineItem",
    "Tool",
    "ToolCall",
    "ToolRequest",
    "ToolRequestEvent",
    "TypingEvent",
    "timeline",
]
