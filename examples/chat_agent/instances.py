"""A simple value for a JSON schema, as the built-in model says it in an answer that has a shape."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

DEEPEST: Final = 20  # a schema may refer to itself


def instance_of(schema: Any, text: str, root: Any = None, depth: int = 0) -> Any:
    """Return a value for the schema: its strings are the text, its numbers are of the text."""
    root = schema if root is None else root
    if not isinstance(schema, Mapping) or depth > DEEPEST:
        return None

    def of(part: Any) -> Any:
        return instance_of(part, text, root, depth + 1)

    match schema:
        case {"const": value} | {"enum": [value, *_]} | {"default": value}:
            return value
        case {"$ref": str(path)}:
            found = root
            for name in path.removeprefix("#").split("/")[1:]:
                found = found.get(name) if isinstance(found, Mapping) else None
            return of(found)
        case {"anyOf": [part, *_]} | {"oneOf": [part, *_]} | {"allOf": [part, *_]}:
            return of(part)
        case {"type": [kind, *_]}:
            return of({**schema, "type": kind})
        case {"type": "object"} | {"properties": _}:
            properties = schema.get("properties") or {}
            return {name: of(part) for name, part in properties.items()}
        case {"type": "array"}:
            return [of(schema.get("items"))] * max(1, min(int(schema.get("minItems") or 0), 100))
        case {"type": "integer" | "number" as kind}:
            number = re.search(r"-?\d{1,15}" if kind == "integer" else r"-?\d{1,15}(\.\d+)?", text)
            return (
                float(number[0]) if number and "." in number[0] else int(number[0] if number else 0)
            )
        case {"type": "boolean"}:
            return True
        case {"type": "null"}:
            return None
    return text
