"""Kubeconfig files -> the three entries that one context names, with errors that say where they stand.

As kubectl does, and clients in Python do not: the files of ``KUBECONFIG`` are put together, the first
entry of a name counts; paths are relative to the file they stand in; entries that are not asked for may be
wrong; inline data goes before a file (client-go, tools/clientcmd). No error shows a line of a file.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from gpucost.domain.errors import ConfigError, InputError, Remark

MAX_BYTES = 4 << 20
"""Of a kubeconfig, and of a certificate or key."""

_PATHS = ("certificate-authority", "client-certificate", "client-key", "tokenFile")
_KINDS = ("cluster", "context", "user")


@dataclass(frozen=True, slots=True)
class Entry:
    """A cluster, context or user. ``values`` has no empty ones, and only absolute paths."""

    file: str
    kind: str
    name: str
    values: Mapping[str, Any]

    def wrong(self, key: str, value: object, allowed: str) -> ConfigError:
        """``value`` is shown: a ``Remark`` for what is secret."""
        return ConfigError(self.file, f"{self.kind}s[{self.name}].{key}", value, allowed)

    def text(self, key: str) -> str:
        """A value that is text; empty where there is none. Raises ConfigError."""
        value = self.values.get(key, "")
        if not isinstance(value, str):
            raise self.wrong(key, Remark(f"a {type(value).__name__}"), "text; put quotes around it")
        return value

    def material(self, key: str) -> bytes | None:
        """What a certificate or key holds: from ``<key>-data``, or from the file that ``key`` names."""
        if encoded := self.text(f"{key}-data"):
            try:
                return base64.b64decode(encoded, validate=False)
            except (binascii.Error, ValueError):
                raise self.wrong(f"{key}-data", Remark("not base64"), "PEM in base64") from None
        if not (path := self.text(key)):
            return None
        try:
            with Path(path).open("rb") as opened:
                return opened.read(MAX_BYTES)
        except OSError as error:
            remark = Remark(f"{path}: {os.strerror(error.errno or 0)}")
            raise self.wrong(key, remark, "a file that can be read") from None


@dataclass(frozen=True, slots=True)
class Selected:
    """What a context leads to. Without ``user``, requests carry no credentials."""

    context: Entry
    cluster: Entry
    user: Entry | None


def select(files: Sequence[Path], context: str = "") -> Selected:
    """The entries of ``context``, or of the current one.

    Files that do not exist are left out, as long as there is one. Raises InputError, and ConfigError for
    what stands in a file.
    """
    found = [file for file in files if file.is_file()]
    if not found:
        where = Remark(f"there is no {', '.join(map(str, files))}")
        raise InputError(
            "kubeconfig",
            where,
            "a file named by its setting or KUBECONFIG, or ~/.kube/config; in a pod, none",
        )
    current, entries = "", dict[tuple[str, str], Entry]()
    for file in found:
        document = _read(file)
        current = current or str(document.get("current-context") or "")
        for entry in _entries(document, file):
            entries.setdefault((entry.kind, entry.name), entry)
    return _chosen(context or current, entries)


def _chosen(name: str, entries: Mapping[tuple[str, str], Entry]) -> Selected:
    names = ", ".join(known for kind, known in entries if kind == "context") or "none is there"
    if not name:
        raise InputError("context", Remark("no current one"), f"one of: {names}")
    if (context := entries.get(("context", name))) is None:
        raise InputError("context", name, f"one of: {names}")
    cluster = _named(context, "cluster", entries)
    if cluster is None:
        raise context.wrong("cluster", Remark("missing"), "the name of a cluster")
    return Selected(context, cluster, _named(context, "user", entries))


def _named(context: Entry, kind: str, entries: Mapping[tuple[str, str], Entry]) -> Entry | None:
    if not (name := context.text(kind)):
        return None
    if (found := entries.get((kind, name))) is None:
        raise context.wrong(kind, name, f"the name of a {kind} in the same files")
    return found


def _read(file: Path) -> dict[str, Any]:
    allowed = "a kubeconfig: a YAML mapping with clusters, contexts and users"
    try:
        with file.open("rb") as opened:
            text = opened.read(MAX_BYTES + 1)
        if len(text) > MAX_BYTES:
            raise ConfigError(str(file), "kubeconfig", Remark("too large"), f"at most {MAX_BYTES} bytes")
        document = yaml.safe_load(text)
    except OSError as error:
        raise InputError("kubeconfig", Remark(f"{file}: {os.strerror(error.errno or 0)}"), allowed) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark else None
        raise ConfigError(str(file), "kubeconfig", Remark("not YAML"), allowed, line) from None
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise ConfigError(str(file), "kubeconfig", Remark("not a mapping"), allowed)
    return document


def _entries(document: Mapping[str, Any], file: Path) -> list[Entry]:
    entries: list[Entry] = []
    for kind in _KINDS:
        listed = document.get(f"{kind}s") or []
        if not isinstance(listed, list):
            raise ConfigError(str(file), f"{kind}s", Remark("not a list"), f"a list of {kind}s")
        for at, item in enumerate(listed):
            if not isinstance(item, dict) or not isinstance(item.get("name"), str):
                raise ConfigError(str(file), f"{kind}s[{at}]", Remark("no name"), "an entry with a name")
            values = item.get(kind) or {}
            if not isinstance(values, dict):
                raise ConfigError(str(file), f"{kind}s[{at}].{kind}", Remark("not a mapping"), "a mapping")
            entries.append(Entry(str(file), kind, item["name"], _resolved(values, file.absolute().parent)))
    return entries


def _resolved(values: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    kept = {str(key): value for key, value in values.items() if value not in ("", None)}
    for key in _PATHS:
        if isinstance(path := kept.get(key), str):
            kept[key] = str(folder / path)
    plugin = kept.get("exec")
    if isinstance(plugin, dict) and isinstance(command := plugin.get("command"), str) and "/" in command:
        kept["exec"] = {**plugin, "command": str(folder / command)}
    return kept
