"""Messages as JSON and back: what the outbox keeps of them."""

from __future__ import annotations

import json
from dataclasses import asdict

from pydantic import TypeAdapter, ValidationError

from gpucost.domain.errors import GpuCostError
from gpucost.notify.message import Message

VERSION = 1
_MESSAGE = TypeAdapter(Message)


class UnreadableMessage(GpuCostError):
    """The text was not written by this version of ``to_json``."""


def to_json(message: Message) -> str:
    """Compact text, the same for equal messages. What no database can store is replaced by ``?``."""
    text = _compact({"version": VERSION, "message": asdict(message)})
    return text.encode(errors="replace").decode()


def from_json(text: str) -> Message:
    """The message that ``to_json`` wrote. Raises UnreadableMessage for anything else: another version, a
    field too many or too few, a value of another type."""
    try:
        found = json.loads(text)
        version, written = found["version"], found["message"]
        if version != VERSION:
            raise UnreadableMessage(f"version {version!r} of a message; this gpucost reads {VERSION}")
        message = _MESSAGE.validate_python(written)
    except (ValidationError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UnreadableMessage(f"no message: {type(error).__name__}") from None
    # Pydantic forgives unknown fields and converts types; what it made must be what was written.
    if to_json(message) != _compact(found):
        raise UnreadableMessage("no message as it is written here: fields or types differ")
    return message


def _compact(found: object) -> str:
    return json.dumps(found, ensure_ascii=False, separators=(",", ":"))
