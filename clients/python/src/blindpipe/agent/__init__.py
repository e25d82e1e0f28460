"""The agent's side: events in, answers out, each exactly once."""

from ..core.approvals import Approval, Receipt
from ..core.files import NewFile
from ..core.opened import Sender
from ..core.types import Event, Message, Sent
from ..stores.pin_store import FilePins, HandledStore, PinStore, StoredTrust
from ..stores.postgres_store import POSTGRES_TABLES, PostgresStore, Queryable
from ..stores.shared_folder import SharedFolder
from ..stores.shared_store import News, SharedPins, SharedStore, StoreChanged
from .agent import Agent
from .approvals import ApprovalResult
from .context import Context, QuestionAnswer, ReceivedFile
from .options import AgentOptions
from .processor import Handler, Middleware
from .stream import MessageStream
from .tool_calls import CallResult
from .turns import BusyPolicy, SteerMessage
from .webhook import WebhookAnswer, verify_delivery

__all__ = [
    "POSTGRES_TABLES",
    "Agent",
    "AgentOptions",
    "Approval",
    "ApprovalResult",
    "BusyPolicy",
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
    "News",
    "PinStore",
    "PostgresStore",
    "Queryable",
    "QuestionAnswer",
    "Receipt",
    "ReceivedFile",
    "Sender",
    "Sent",
    "SharedFolder",
    "SharedPins",
    "SharedStore",
    "SteerMessage",
    "StoreChanged",
    "StoredTrust",
    "WebhookAnswer",
    "verify_delivery",
]
