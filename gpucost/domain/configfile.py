"""Configuration files: YAML text -> a checked model, or one ConfigError that says what to change.

The reader is stricter than YAML: one document, plain mappings, lists and scalars; no duplicate keys, aliases,
merge keys or tags. Numbers keep their written digits: ``6.88`` arrives as Decimal, never as float, and what
is not plain decimal notation (``.inf``, ``1e3``, ``1:30``, ``0x10``) arrives as text, for the model to
refuse. Days and instants stay text as well. Only ``true`` and ``false`` are booleans.

``DatedConfigModel`` is the base of rows that are valid from one instant to another: half-open, UTC, open on
either side.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import re
import textwrap
from collections.abc import Callable, Mapping
from datetime import timedelta
from decimal import Decimal
from functools import cache
from typing import Annotated, Any, Self, TypeVar, get_args

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import ErrorDetails, PydanticCustomError
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from gpucost.domain.errors import ConfigError, ErrorRemark, InputError
from gpucost.domain.money import parse_nano
from gpucost.domain.text import named_first
from gpucost.domain.time import iso, parse_day_or_instant

MAX_CHARS = 512 * 1024

KeyPath = tuple[str | int, ...]
M = TypeVar("M", bound=BaseModel)

_TAG = "tag:yaml.org,2002:"
_SCALARS = {_TAG + kind for kind in ("null", "bool", "int", "float", "str", "timestamp")}
_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]{0,17})\Z")
_DECIMAL = re.compile(r"[-+]?[0-9]{1,30}\.[0-9]{1,30}\Z")
# Control characters, line separators and characters that change the direction of writing are not allowed in
# names.
_TEXT = re.compile(r"[^\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]{1,253}\Z")
_HALVES = re.compile("[\ud800-\udfff]")
_OURS = "gpucost"
_BOUNDS = ("greater_than", "greater_than_equal", "less_than", "less_than_equal")

MISSING = ErrorRemark("missing")


class ConfigModel(BaseModel):
    """Base of every model of a configuration file. Each field's description says what is allowed there."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


def wrong(value: object, allowed: str, *key: str | int) -> PydanticCustomError:
    """The error that a validator of a ConfigModel raises; ``key`` leads from the validated place to the wrong
    one."""
    return PydanticCustomError(_OURS, "wrong", {"value": value, "allowed": allowed, "key": key})


def checked(parse: Callable[[str], object]) -> BeforeValidator:
    """A parser of text that raises InputError, as a pydantic validator."""

    def validate(value: object) -> object:
        if not isinstance(value, str):
            return value
        try:
            return parse(value)
        except InputError as error:
            raise wrong(value, error.allowed) from None

    return BeforeValidator(validate)


def is_name(text: str) -> bool:
    """Whether ``text`` is fit to be shown and stored: 1 to 253 characters, no control characters, no blanks
    at the ends."""
    return _TEXT.match(text) is not None and text == text.strip()


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise wrong(value, "text; put quotes around it")
    if not is_name(value):
        raise wrong(value, "1 to 253 characters, no control characters, no blanks at the ends")
    return value


def _amount(value: object) -> int:
    try:
        nano = parse_nano(value)
    except InputError:
        nano = -1
    if nano < 0:
        raise wrong(value, "a plain decimal number of at least 0 with at most 9 decimals, such as 6.88")
    return nano


Text = Annotated[str, BeforeValidator(_text)]
Version = Annotated[int, Field(ge=1, le=1)]
Instant = Annotated[int, checked(parse_day_or_instant), WithJsonSchema({"type": "string"})]
"""A day or an RFC 3339 instant, as milliseconds."""
NanoAmount = Annotated[
    int, BeforeValidator(_amount), WithJsonSchema({"type": ["number", "string"], "minimum": 0})
]
"""A decimal number of at least 0, as an integer count of 1e-9."""


def load_yaml(text: str, file: str, model: type[M], *, is_ours: bool = False) -> M:
    """YAML ``text`` as a validated ``model``; ``file`` is only named in errors. What ``is_ours`` came with
    the program.

    Raises ConfigError for the first error in the order of the file, with its line.
    """
    values, lines = read_yaml(text, file, is_ours=is_ours)
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise config_error(error, file, model, lines) from None


def read_yaml(text: str, file: str, *, is_ours: bool = False) -> tuple[object, Mapping[KeyPath, int]]:
    """The plain values of a document, unchecked, and the line of each key path. Raises ConfigError."""
    document = _Document(file, _OUR_LOADER if is_ours else yaml.SafeLoader)
    return document.read(text), document.lines


def described(model: type[BaseModel], key: str) -> str:
    """What is said of a field: by its declaration, else by the docstring below it, as far as the source code
    is there. Sources are read when somebody asks, not at every start."""
    return model.model_fields[key].description or _docstrings(model).get(key, "")


@cache
def _docstrings(model: type[BaseModel]) -> Mapping[str, str]:
    """The docstrings below the fields of a model and of what it inherits from."""
    found: dict[str, str] = {}
    for kind in reversed(model.__mro__):
        if not issubclass(kind, BaseModel) or kind is BaseModel:
            continue
        try:
            (body,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
        except (OSError, TypeError):
            continue
        lines = body.body if isinstance(body, ast.ClassDef) else []
        for field, text in itertools.pairwise(lines):
            if not (isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)):
                continue
            if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                found[field.target.id] = inspect.cleandoc(str(text.value.value))
    return found


def config_error(
    error: ValidationError, file: str, model: type[BaseModel], lines: Mapping[KeyPath, int] | None = None
) -> ConfigError:
    """The first of pydantic's errors in plain words: key path, value, what is allowed.

    Wrong values come before missing ones: a misspelt key is both.
    """
    found = [_explain(details, model) for details in error.errors(include_url=False)]
    placed = [(_line(path, lines or {}), path, value, allowed) for path, value, allowed in found]
    line, path, value, allowed = min(placed, key=lambda item: (item[2] is MISSING, item[0] or 0))
    return ConfigError(file, dotted(path), value, allowed, line)


def dotted(path: KeyPath) -> str:
    """``("prices", 3, "per_hour")`` -> ``prices[3].per_hour``."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".") or "(top level)"


def _line(path: KeyPath, lines: Mapping[KeyPath, int]) -> int | None:
    return next((lines[path[:n]] for n in range(len(path), -1, -1) if path[:n] in lines), None)


def _explain(details: ErrorDetails, model: type[BaseModel]) -> tuple[KeyPath, object, str]:
    path, kind, context = details["loc"], details["type"], details.get("ctx", {})
    if kind == _OURS:
        return (*path, *context["key"]), context["value"], context["allowed"]
    if kind == "extra_forbidden":
        return path, ErrorRemark("unknown key"), _keys(_descend(model, path[:-1])[0], str(path[-1]))
    owner, description = _descend(model, path)
    if kind == "missing":
        return path, MISSING, description
    if kind in ("model_type", "model_attributes_type"):
        return path, details["input"], f"a mapping of {_keys(owner, '')}"
    given = details["input"]
    if kind == "tuple_type" and not issubclass(owner, ConfigModel):
        # Without the value, which may be a secret.
        return path, given, f"a list, in brackets or with dashes: {description}"
    if kind in _BOUNDS and not issubclass(owner, ConfigModel):
        bound = f"{details['msg'].removeprefix('Input should be ')}: {description}"
        return path, str(given) if isinstance(given, timedelta) else given, bound
    return path, given, description or details["msg"]


def _keys(model: type[BaseModel], found: str) -> str:
    names = [field.alias or name for name, field in model.model_fields.items()]
    return named_first(found, names) + ", ".join(names)


def _descend(model: type[BaseModel], path: KeyPath) -> tuple[type[BaseModel], str]:
    """The model that owns the end of ``path``, and the description of the last field on the way."""
    description = ""
    for part in path:
        fields = {each.alias or name: each for name, each in model.model_fields.items()}
        field = fields.get(part) if isinstance(part, str) else None
        if field is not None:
            description = described(model, str(part))
            model = model_in(field.annotation) or model
    return model, description


def model_in(annotation: object) -> type[BaseModel] | None:
    """The model in the type of a field, as in ``tuple[Model, ...]``; None where there is none."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in get_args(annotation) if (found := model_in(part))), None)


# For files of others the loader in Python: the one in C overruns its stack on deep nesting and takes the
# process with it.
_OUR_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Document:
    """One YAML document while it is turned into plain values; ``lines`` maps each key path to its line."""

    def __init__(self, file: str, loader: Callable[[str], Any]) -> None:
        self.file = file
        self._loader = loader
        self.lines: dict[KeyPath, int] = {}
        self._seen: set[int] = set()

    def read(self, text: str) -> object:
        if len(text) > MAX_CHARS:
            raise ConfigError(self.file, "size", len(text), f"at most {MAX_CHARS:,} characters")
        try:
            node = self._loader(text).get_single_node()
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            problem = getattr(error, "problem", None) or "a character that text cannot hold"
            line = mark.line + 1 if mark else None
            raise ConfigError(self.file, "syntax", ErrorRemark(problem), "one YAML document", line) from None
        except RecursionError:
            raise ConfigError(
                self.file, "syntax", ErrorRemark("too deep"), "a few levels of lists and mappings"
            ) from None
        return {} if node is None else self._value(node, ())

    def _value(self, node: Node, path: KeyPath) -> object:
        self.lines.setdefault(path, node.start_mark.line + 1)
        if id(node) in self._seen:
            raise self._error(node, path, ErrorRemark("an alias"), "the value itself, written out again")
        self._seen.add(id(node))
        if isinstance(node, MappingNode) and node.tag == f"{_TAG}map":
            return self._mapping(node, path)
        if isinstance(node, SequenceNode) and node.tag == f"{_TAG}seq":
            return tuple(self._value(item, (*path, n)) for n, item in enumerate(node.value))
        if isinstance(node, ScalarNode) and node.tag in _SCALARS:
            self._refuse_halves(node, path)
            return _scalar(node)
        raise self._error(node, path, node.tag, "plain YAML without tags")

    def _mapping(self, node: MappingNode, path: KeyPath) -> dict[str, object]:
        values: dict[str, object] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, ScalarNode) or key_node.tag == f"{_TAG}merge":
                raise self._error(
                    key_node, path, ErrorRemark("a key that is no text"), "keys of plain text, no merge (<<)"
                )
            self._refuse_halves(key_node, path)
            key = key_node.value
            if key in values:
                raise self._error(key_node, (*path, key), ErrorRemark("duplicate key"), "every key once")
            self.lines[(*path, key)] = key_node.start_mark.line + 1
            values[key] = self._value(value_node, (*path, key))
        return values

    def _refuse_halves(self, node: ScalarNode, path: KeyPath) -> None:
        """Half of a surrogate pair, written as an escape, is in no encoding: no message could show it."""
        if _HALVES.search(str(node.value)):
            text = str(node.value).encode("utf-8", "backslashreplace").decode()
            raise self._error(node, path, text, "characters: half of a surrogate pair is none")

    def _error(self, node: Node, path: KeyPath, value: object, allowed: str) -> ConfigError:
        return ConfigError(self.file, dotted(path), value, allowed, node.start_mark.line + 1)


def _scalar(node: ScalarNode) -> object:
    kind, text = node.tag.removeprefix(_TAG), str(node.value)
    if kind == "null":
        return None
    if kind == "bool" and text.lower() in ("true", "false"):
        return text.lower() == "true"
    if kind == "int" and _INTEGER.match(text):
        return int(text)
    if kind == "float" and _DECIMAL.match(text):
        return Decimal(text)
    return text


BEGINNING = -(2**62)
END = 2**62

_TIMES = "a day such as 2026-10-01 (midnight UTC) or an RFC 3339 instant with a zone"


class DatedConfigModel(ConfigModel):
    """A model with ``valid_from`` and ``valid_to``; left out, that side is open."""

    valid_from: Instant | None = Field(None, description=f"{_TIMES}; inclusive")
    valid_to: Instant | None = Field(None, description=f"{_TIMES}; exclusive")

    @model_validator(mode="after")
    def _has_time(self) -> Self:
        if self.start_ms >= self.end_ms:
            raise wrong(iso(self.end_ms), f"a time after valid_from, {iso(self.start_ms)}", "valid_to")
        return self

    @property
    def start_ms(self) -> int:
        return BEGINNING if self.valid_from is None else self.valid_from

    @property
    def end_ms(self) -> int:
        return END if self.valid_to is None else self.valid_to

    @property
    def edges(self) -> frozenset[int]:
        """The instants at which it starts or ends, as far as they are set."""
        return frozenset(edge for edge in (self.valid_from, self.valid_to) if edge is not None)

    @property
    def validity(self) -> str:
        """``from 2026-10-01T00:00:00Z to 2027-01-01T00:00:00Z``; ``always`` where open on both sides."""
        start = "" if self.valid_from is None else f"from {iso(self.valid_from)}"
        end = "" if self.valid_to is None else f"to {iso(self.valid_to)}"
        return f"{start} {end}".strip() or "always"

    def holds_at(self, instant_ms: int) -> bool:
        return self.start_ms <= instant_ms < self.end_ms

    def coincides(self, other: DatedConfigModel) -> bool:
        """Whether both are valid at some instant."""
        return max(self.start_ms, other.start_ms) < min(self.end_ms, other.end_ms)
