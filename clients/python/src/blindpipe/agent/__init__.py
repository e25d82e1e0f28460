"""The agent's side: events in, answers out, each exactly once."""

from ..core.files import NewFile
from ..core.opened import Sender
from ..core.types import Event, Message, Sent
from .agent import Agent
from .context import Context, QuestionAnswer, ReceivedFile
from .options import AgentOptions
from .pin_store import FilePins, HandledStore, PinStore, StoredTrust
from .processor import Handler, Middleware
from .stream import MessageStream
from .tool_calls import CallResult
from .webhook import WebhookAnswer, verify_delivery

__all__ = [
    "Agent",
    "AgentOptions",
    "CallResult",
    "Context",
    "Event",
    "FilePins",
    "HandledStore",
    "Handler",
    "Message",
    "MessageStream",
    "Middleware",
    "NewFile",
    "PinStore",
    "QuestionAnswer",
    "ReceivedFile",
    "Sender",
    "Sent",
    "StoredTrust",
    "WebhookAnswer",
    "verify_delivery",
]
