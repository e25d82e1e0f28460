"""Contents that do not fit an envelope, and events that do not fit a delivery."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Final, cast
from urllib.parse import parse_qs, urlsplit

from ..e2ee import E2eeError
from ..e2ee import content as contents
from ..errors import BlindpipeError, ConnectionLost
from ..transport.http import Call, Http
from .files import NewFile, download_file, object_path, upload_file
from .types import Event, JsonObject

MAX_LARGE_CONTENT_BYTES: Final = 16 * 1024 * 1024
"""A reader takes no larger content from a file."""
_OF_FILE: Final = ("file_id", "object_key", "size", "sha256", "key")


async def fitting_content(
    http: Http, base: str, conversation_id: str, content: JsonObject
) -> JsonObject:
    """The content, or the reference to the file that it was put into. `base` is for uploads."""
    data = contents.encode(content)
    if len(data) <= contents.MAX_CONTENT_BYTES - contents.RESERVED_BYTES:
        return content
    if len(data) > MAX_LARGE_CONTENT_BYTES:
        raise E2eeError("malformed")
    stored = await upload_file(http, base, conversation_id, NewFile("content", data))
    return {"type": "content_ref"} | {name: stored[name] for name in _OF_FILE}


async def resolved_content(http: Http, content: JsonObject, source: str) -> tuple[JsonObject, str]:
    """The content that a reference leads to, and its text; any other content as it is."""
    size = content.get("size")
    if content.get("type") != "content_ref" or not isinstance(size, int):
        return content, source
    if size > MAX_LARGE_CONTENT_BYTES:
        return content, source
    try:
        data = await download_file(http, content)
        inner = contents.parse(data, MAX_LARGE_CONTENT_BYTES)
    except E2eeError:
        return content, source
    except BlindpipeError as error:
        # A file that is gone leads nowhere; one that cannot be read now is read later.
        if error.status != 404:
            raise
        return content, source
    if inner.get("type") == "content_ref":
        return content, source
    re = {"re": content["re"]} if "re" in content else {}
    return {**inner, **re}, data.decode()


async def resolved_event(http: Http, event: Event) -> Event:
    """The event with its data, if a delivery has a reference in their place."""
    named = event["data"].get("object_ref")
    if not isinstance(named, dict) or len(event["data"]) != 1:
        return event
    # The address is asked of the own service, whatever host it names.
    signed = parse_qs(urlsplit(str(named.get("url", ""))).query)
    query: dict[str, str | int | None] = {
        name: signed[name][0] for name in ("expires", "sig") if name in signed
    }
    path = object_path(named)
    answer = await http.raw(Call("GET", path, query, public=True))
    if hashlib.sha256(answer.body).hexdigest() != str(named.get("sha256", "")).lower():
        raise ConnectionLost("the data of an event are others")
    return cast(Event, {**event, "data": cast(Any, json.loads(answer.body))})
