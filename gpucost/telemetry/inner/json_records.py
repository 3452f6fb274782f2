"""Steps into decoded JSON that say where they stand when something else is there than was expected."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpucost.domain.errors import ErrorRemark, InputError


@dataclass(frozen=True, slots=True)
class JsonPlace:
    """A value, and its place in a file, such as ``jobs.json: jobs[3].time``.

    Where a list or an object is expected, an error says what kind of value is there and not the value: a file
    that is something else altogether may be a secret.
    """

    value: object
    where: str

    @classmethod
    def parse(cls, text: str, file: str) -> JsonPlace:
        """Raises InputError, which names the line."""
        try:
            return cls(json.loads(text), f"{file}:")
        except (ValueError, RecursionError) as error:
            line = f"line {error.lineno}" if isinstance(error, json.JSONDecodeError) else "text"
            raise InputError(f"{file}: {line}", ErrorRemark("is not JSON"), "one JSON document") from None

    def at(self, *path: str) -> JsonPlace:
        """The value under these keys; None where one is missing or null on the way."""
        value: object = self.value
        where = self.where
        for key in path:
            if value is not None and not isinstance(value, Mapping):
                raise InputError(where, _kind(value), f"an object with {key}")
            value = None if value is None else value.get(key)
            where = f"{where} {key}" if where.endswith(":") else f"{where}.{key}"
        return JsonPlace(value, where)

    def items(self) -> Sequence[JsonPlace]:
        if not isinstance(self.value, list):
            raise InputError(self.where, _kind(self.value), "a list")
        at = f"{self.where} " if self.where.endswith(":") else self.where
        return [JsonPlace(value, f"{at}[{n}]") for n, value in enumerate(self.value)]

    def text(self, default: str | None = None) -> str:
        """Raises InputError for anything but text; null is ``default``, where there is one."""
        if self.value is None and default is not None:
            return default
        if not isinstance(self.value, str):
            raise InputError(self.where, self.value, "text")
        return self.value

    def number(self) -> int | None:
        """A whole number, as such or as Slurm has those that may be unset: ``{"set": true, "number": 5}``.
        None where it is null or unset. Raises InputError."""
        value = self.value
        if isinstance(value, Mapping):
            if not value.get("set") or value.get("infinite"):
                return None
            value = value.get("number")
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            raise InputError(self.where, self.value, "a whole number")
        return value


def _kind(value: object) -> ErrorRemark:
    """What a decoded value is, in the words of JSON."""
    if isinstance(value, bool) or value is None:
        return ErrorRemark("is null" if value is None else "is true or false")
    kinds: dict[type, str] = {str: "is text", list: "is a list", dict: "is an object"}
    return ErrorRemark(kinds.get(type(value), "is a number"))
