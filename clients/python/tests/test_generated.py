"""Shapes by hand and generated classes fit the documents of the service."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NotRequired, get_origin, get_type_hints

import generate_errors as errors
import pytest

from blindpipe.core import types

OPENAPI = Path(__file__).parents[3] / "docs/api/openapi.json"
SCHEMAS: dict[str, Any] = json.loads(OPENAPI.read_text())["components"]["schemas"]
SHAPES = {
    "Message": types.Message,
    "Sent": types.Sent,
    "Member": types.Member,
    "Conversation": types.ConversationInfo,
    "Sender": types.SenderInfo,
    "ToolCall": types.ToolCall,
    "ToolCallState": types.ToolCallState,
    "SignedIn": types.SignedIn,
    "Device": types.Device,
    "Grant": types.Grant,
}


def test_there_is_a_class_per_code() -> None:
    text = errors.generate(errors.CATALOGUE.read_text())
    assert errors.TARGET.read_text() == text, "run `python3 scripts/generate_errors.py`"


@pytest.mark.parametrize("name", SHAPES)
def test_shapes_are_those_of_the_openapi_document(name: str) -> None:
    schema, shape = SCHEMAS[name], SHAPES[name]
    assert set(shape.__annotations__) <= set(schema["properties"])
    hints = get_type_hints(shape, include_extras=True)
    required = {field for field, hint in hints.items() if get_origin(hint) is not NotRequired}
    assert required == set(hints) & set(schema["required"])
