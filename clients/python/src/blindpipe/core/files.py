"""Files: sealed here, stored as ciphertext, opened here."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final, Literal

from ..e2ee import E2eeError, Secret, from_base64, to_base64
from ..e2ee import file as sealed_file
from ..transport.http import Call, Http
from .types import JsonObject

UPLOAD_NAME: Final = "blob"
UPLOAD_TYPE: Final = "application/octet-stream"
TRANSFER_TIMEOUT_SECONDS: Final = 600.0
_PLAIN_PATH = re.compile(r"(?!.*\.\.)[A-Za-z0-9._/-]+", re.ASCII)
_SHA256 = re.compile(r"[0-9A-Fa-f]{64}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Thumbnail:
    """A small picture of a file: PNG, JPEG or WebP of at most 24 KiB."""

    content_type: str
    data: bytes = field(repr=False)
    width: int
    height: int

    def to_json(self) -> JsonObject:
        """The thumbnail inside of a content."""
        return {
            "content_type": self.content_type,
            "data": to_base64(self.data),
            "width": self.width,
            "height": self.height,
        }


@dataclass(frozen=True, slots=True)
class NewFile:
    """A file to be sent."""

    name: str
    content: bytes = field(repr=False)
    content_type: str = UPLOAD_TYPE
    caption: str | None = field(default=None, repr=False)
    kind: Literal["image", "audio", "video", "document"] | None = None
    """By default readers take it from the content type."""
    thumbnail: Thumbnail | None = None

    def _shown(self) -> JsonObject:
        shown = {
            "caption": self.caption,
            "kind": self.kind,
            "thumbnail": self.thumbnail.to_json() if self.thumbnail else None,
        }
        return {name: value for name, value in shown.items() if value is not None}


async def upload_file(http: Http, base: str, conversation_id: str, file: NewFile) -> JsonObject:
    """Seals and uploads; answers the content of the message. `base` is the route for uploads."""
    sealed = sealed_file.seal(file.content)
    asked = {
        "filename": UPLOAD_NAME,
        "content_type": UPLOAD_TYPE,
        "size": len(sealed.data),
        "conversation_id": conversation_id,
    }
    upload = await http.data(Call("POST", base, body=asked))
    upload_id = upload["upload_id"]
    await http.raw(
        Call(
            "PUT",
            f"{base}/{upload_id}/upload",
            data=sealed.data,
            headers={"content-type": UPLOAD_TYPE},
            timeout=TRANSFER_TIMEOUT_SECONDS,
        )
    )
    confirmed = {"upload_id": upload_id, "sha256": sealed.sha256.hex()}
    stored = await http.data(Call("POST", "/files/confirm", body=confirmed, repeatable=True))
    return {
        "type": "file",
        "file_id": stored["file_id"],
        "object_key": stored["object_key"],
        "name": file.name,
        "content_type": file.content_type,
        "size": len(file.content),
        "sha256": sealed.sha256.hex(),
        "key": to_base64(sealed.key.expose()),
        **file._shown(),
    }


async def download_file(http: Http, content: JsonObject) -> bytes:
    """The bytes of a file; nothing is given out before hash and last chunk are checked."""
    file = named_file(content)
    raw = await http.raw(Call("GET", file.path, timeout=TRANSFER_TIMEOUT_SECONDS))
    return sealed_file.open(raw.body, file.key, file.sha256)


@dataclass(frozen=True, slots=True)
class NamedFile:
    """The file that a message names."""

    path: str
    key: Secret
    sha256: bytes


def named_file(content: JsonObject) -> NamedFile:
    """Raises `malformed` for a content that leads to no file."""
    path = object_path(content)
    sha256 = bytes.fromhex(_field(content, "sha256", _SHA256))
    return NamedFile(path, Secret(from_base64(_field(content, "key"))), sha256)


def object_path(named: JsonObject) -> str:
    """The path of the object that something names. Raises `malformed`."""
    # Another member wrote these fields: any other path would be another call of this principal.
    return f"/objects/{_field(named, 'object_key', _PLAIN_PATH)}"


def _field(content: JsonObject, name: str, form: re.Pattern[str] | None = None) -> str:
    value = content.get(name)
    if not isinstance(value, str) or not (form is None or form.fullmatch(value)):
        raise E2eeError("malformed")
    return value
