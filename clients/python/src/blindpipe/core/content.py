"""The kinds of contents, and what a reader shows of them: `docs/content.md`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal, TypeVar

from ..e2ee import E2eeError, from_base64, ids
from ..errors import UsageError
from .types import JsonObject

ContentKind = Literal[
    "text",
    "question",
    "answer",
    "approval",
    "decision",
    "file",
    "status",
    "edit",
    "delete",
    "reaction",
    "unknown",
]

MAX_STATUS_CHARS: Final = 500
MAX_EMOJI_BYTES: Final = 64
HASH_BYTES: Final = 32

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class ContentView:
    """What a reader shows of a content."""

    kind: ContentKind
    text: str = field(repr=False)
    """The words: a file's caption or name, an answer's choice, the fallback of what is unknown.

    Empty for a change of another message.
    """
    markdown: bool

    @classmethod
    def of(cls, content: JsonObject) -> ContentView:
        """Looks at a content. Every object has a view."""
        known = _known(content)
        if known is None:
            return cls("unknown", _field(content, "fallback", str) or "", False)
        kind, text = known
        return cls(kind, text, kind == "text" and content.get("format") == "markdown")


def _field(content: JsonObject, name: str, form: type[_T]) -> _T | None:
    value = content.get(name)
    return value if isinstance(value, form) else None


def _first(*texts: str | None) -> str | None:
    return next((text for text in texts if text is not None), None)


def _known(content: JsonObject) -> tuple[ContentKind, str] | None:
    """Kind and words; None for a content that is unknown."""
    kind, words = content.get("type"), _words(content)
    match kind:
        case "text" | "question" | "answer" | "approval" | "decision" | "file" | "status":
            return None if words is None else (kind, words)
        case "edit" | "delete" | "reaction":
            return None if Change.read(content) is None else (kind, "")
    return None


def _words(content: JsonObject) -> str | None:
    text, choice = _field(content, "text", str), _field(content, "choice", str)
    match content.get("type"):
        case "answer":
            return _first(choice, text)
        case "approval":
            return None if _field(content, "name", str) is None else text
        case "decision":
            decision = content.get("decision")
            known = decision in ("approved", "denied", "answered")
            return _first(choice, text, str(decision)) if known else None
        case "file":
            return _file_words(content)
        case "status":
            return text if text is not None and len(text) <= MAX_STATUS_CHARS else None
    return text


def _file_words(content: JsonObject) -> str | None:
    required = ("name", "object_key", "sha256", "key")
    if any(_field(content, name, str) is None for name in required):
        return None
    return _first(_field(content, "caption", str), _field(content, "name", str))


@dataclass(frozen=True, slots=True)
class Target:
    """The message that a change is about. The hash binds it to what the author saw."""

    message_id: bytes
    re: bytes | None
    """None for a message in clear."""

    @classmethod
    def read(cls, content: JsonObject) -> Target | None:
        """The target of a change; None if it is malformed."""
        target = content.get("target")
        if not isinstance(target, dict):
            return None
        try:
            id = ids.parse(str(target.get("message_id")))
            re = from_base64(str(target["re"])) if "re" in target else None
        except E2eeError:
            return None
        return cls(id, re) if re is None or len(re) == HASH_BYTES else None


def target_of(message_id: str, re: str | None) -> JsonObject:
    """The target of a change, as its content names it."""
    return {"message_id": message_id} | ({} if re is None else {"re": re})


def edit_content(target: JsonObject, content: JsonObject) -> JsonObject:
    """The content that replaces that of the target."""
    view = ContentView.of(content)
    if view.kind not in ("text", "file"):
        raise UsageError("a text or a file can be edited")
    return {"type": "edit", "target": target, "content": content, "fallback": view.text}


def delete_content(target: JsonObject) -> JsonObject:
    """The content that takes the target back."""
    return {"type": "delete", "target": target, "fallback": ""}


def reaction_content(target: JsonObject, emoji: str, remove: bool) -> JsonObject:
    """The content that puts an emoji beside the target, or takes it away."""
    if not _is_emoji(emoji):
        raise UsageError("an emoji is 1 to 64 bytes without spaces")
    removed = {"remove": True} if remove else {}
    return {"type": "reaction", "target": target, "emoji": emoji, "fallback": emoji} | removed


@dataclass(frozen=True, slots=True)
class Change:
    """A message that changes an earlier one."""

    kind: Literal["edit", "delete", "reaction"]
    target: Target
    content: JsonObject = field(default_factory=dict, repr=False)
    """Of an edit."""
    emoji: str = ""
    is_removed: bool = False
    """The reaction is taken back."""

    @classmethod
    def read(cls, content: JsonObject) -> Change | None:
        """None for a content that is no change, or a malformed one."""
        target = Target.read(content)
        if target is None:
            return None
        match content.get("type"):
            case "edit":
                edited = content.get("content")
                if isinstance(edited, dict) and ContentView.of(edited).kind in ("text", "file"):
                    return cls("edit", target, edited)
            case "delete":
                return cls("delete", target)
            case "reaction":
                emoji = content.get("emoji")
                if isinstance(emoji, str) and _is_emoji(emoji):
                    is_removed = content.get("remove") is True
                    return cls("reaction", target, emoji=emoji, is_removed=is_removed)
        return None


def _is_emoji(text: str) -> bool:
    shown = all(letter > " " and not "\x7f" <= letter <= "\xa0" for letter in text)
    return shown and 1 <= len(text.encode()) <= MAX_EMOJI_BYTES
