"""The payload that Alertmanager posts to a webhook, version 4, read and checked.

Every group is sent as a whole, repeatedly while it fires, and at least once when it is resolved. Unknown
fields are ignored, since Alertmanager adds some; a known one of a wrong type is refused. Texts come from the
authors of rules and from workloads: untrusted.

Source: prometheus.io/docs/alerting/latest/configuration/#webhook_config.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from gpucost.domain.errors import ErrorRemark, InputError
from gpucost.domain.text import most_values_of
from gpucost.domain.time import parse_instant
from gpucost.notify.notices import short_hash

MAX_BYTES = 4 << 20
"""A larger body is refused, and its group is lost until Alertmanager sends it anew: it repeats what was
answered with a 5xx and nothing else (prometheus/alertmanager v0.28, notify/webhook/webhook.go and
notify/util.go: Retrier.Check). So it is room for thousands of alerts, where ``max_alerts`` of the receiver
should keep it to some hundred."""
MOST_VALUES = 400_000
"""Most values in one body, counted by its commas and brackets. Bodies of that size have half as many."""
MOST_ALERTS = 500
"""Most alerts that are read of one group; the rest are counted as cut off, and the message says so."""
MOST_PAIRS = 100
"""Labels, or annotations, of one alert."""
LONGEST_NAME = 1_000
LONGEST_TEXT = 4_000
"""Characters of one value; the rest of it is cut."""
CUT = "… (cut)"
FINDING_LABEL = "finding"
_FIRING, _RESOLVED = "firing", "resolved"
_NEVER = "0001-01-01T"
_HALVES = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class AlertmanagerAlert:
    """One alert. ``starts_ms`` and ``ends_ms`` are None where the payload has none; an end may be in the
    future, for one that fires. ``fingerprint`` identifies its set of labels."""

    is_firing: bool
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    starts_ms: int | None
    ends_ms: int | None
    generator_url: str
    fingerprint: str

    @property
    def finding_id(self) -> int | None:
        """The number of the finding that it is about, from its label; None for any other alert."""
        text = self.labels.get(FINDING_LABEL, "")
        return int(text) if text.isascii() and text.isdecimal() and len(text) <= 18 else None


@dataclass(frozen=True, slots=True)
class AlertmanagerGroup:
    """One group as it was sent. ``truncated`` is how many alerts of the group are not among ``alerts``."""

    group_key: str
    is_firing: bool
    receiver: str
    group_labels: Mapping[str, str]
    common_labels: Mapping[str, str]
    common_annotations: Mapping[str, str]
    external_url: str
    truncated: int
    alerts: tuple[AlertmanagerAlert, ...]

    @property
    def firing(self) -> tuple[AlertmanagerAlert, ...]:
        return tuple(each for each in self.alerts if each.is_firing)

    def without(self, is_told: Callable[[AlertmanagerAlert], bool]) -> AlertmanagerGroup:
        """The group without the alerts that are reported elsewhere. It is over where none that is left fires.
        Alerts that were cut off may be of either kind, and stay counted."""
        rest = tuple(each for each in self.alerts if not is_told(each))
        if len(rest) == len(self.alerts):
            return self
        is_firing = any(each.is_firing for each in rest) or bool(self.truncated and self.is_firing)
        return replace(self, alerts=rest, is_firing=is_firing)


def decoded(content: bytes) -> Any:
    """The JSON of a body. Raises InputError naming ``body``."""
    if most_values_of(content) > MOST_VALUES:
        raise InputError(
            "body", ErrorRemark("too many values"), f"at most {MOST_VALUES:,} commas and brackets"
        )
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise InputError("body", ErrorRemark("not JSON"), "the payload of Alertmanager's webhook") from error


def parse(payload: object) -> AlertmanagerGroup:
    """A decoded JSON document. Raises InputError naming the field, the value and what is allowed."""
    body = _mapping(payload, "payload")
    version = body.get("version")
    if version != "4":
        raise InputError("version", ErrorRemark("missing") if version is None else version, '"4"')
    alerts = body.get("alerts")
    if not isinstance(alerts, list):
        raise InputError("alerts", _found(alerts), "a list of alerts")
    read = tuple(_alert(each, f"alerts[{n}]") for n, each in enumerate(alerts[:MOST_ALERTS]))
    key = _text(body, "groupKey")
    if not key:
        raise InputError("groupKey", ErrorRemark("missing"), "the key of the group")
    return AlertmanagerGroup(
        group_key=key,
        is_firing=_is_firing(body, "status"),
        receiver=_text(body, "receiver"),
        group_labels=_pairs(body, "groupLabels"),
        common_labels=_pairs(body, "commonLabels"),
        common_annotations=_pairs(body, "commonAnnotations"),
        external_url=_text(body, "externalURL"),
        truncated=_count(body, "truncatedAlerts") + max(0, len(alerts) - MOST_ALERTS),
        alerts=read,
    )


def _alert(value: object, place: str) -> AlertmanagerAlert:
    found = _mapping(value, place)
    labels = _pairs(found, "labels", place)
    return AlertmanagerAlert(
        is_firing=_is_firing(found, "status", place),
        labels=labels,
        annotations=_pairs(found, "annotations", place),
        starts_ms=_instant(found, "startsAt", place),
        ends_ms=_instant(found, "endsAt", place),
        generator_url=_text(found, "generatorURL", place),
        fingerprint=_text(found, "fingerprint", place) or _fingerprint(labels),
    )


def _fingerprint(labels: Mapping[str, str]) -> str:
    """For a sender that gives none."""
    return short_hash(*(part for pair in sorted(labels.items()) for part in pair))


def _mapping(value: object, field: str) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise InputError(field, _found(value), "an object")
    return value


def _found(value: object) -> object:
    return ErrorRemark("missing") if value is None else value


def _at(place: str, key: str) -> str:
    return f"{place}.{key}" if place else key


def _text(found: Mapping[str, object], key: str, place: str = "") -> str:
    """Empty where it is missing."""
    value = found.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InputError(_at(place, key), value, "text")
    return _cut(value)


def _cut(text: str) -> str:
    """Half a surrogate pair is no character: databases and chats refuse it."""
    text = _HALVES.sub("\ufffd", text)
    return text if len(text) <= LONGEST_TEXT else text[: LONGEST_TEXT - len(CUT)] + CUT


def _is_firing(found: Mapping[str, object], key: str, place: str = "") -> bool:
    status = found.get(key)
    if status not in (_FIRING, _RESOLVED):
        raise InputError(_at(place, key), _found(status), f"{_FIRING} or {_RESOLVED}")
    return status == _FIRING


def _count(found: Mapping[str, object], key: str) -> int:
    value = found.get(key)
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
        raise InputError(key, value, "a whole number of at least 0")
    return value


def _pairs(found: Mapping[str, object], key: str, place: str = "") -> Mapping[str, str]:
    value, field = found.get(key), _at(place, key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InputError(field, value, "an object of names and texts")
    if len(value) > MOST_PAIRS:
        raise InputError(field, ErrorRemark(f"{len(value):,} names"), f"at most {MOST_PAIRS} names")
    for name, text in value.items():
        if len(name) > LONGEST_NAME:
            raise InputError(field, name, f"names of at most {LONGEST_NAME:,} characters")
        if not isinstance(text, str):
            raise InputError(f"{field}.{name}", text, "text")
    return {_cut(name): _cut(text) for name, text in value.items()}


def _instant(found: Mapping[str, object], key: str, place: str) -> int | None:
    """None for a missing value, and for Go's zero time, which means that there is none."""
    text = _text(found, key, place)
    if not text or text.startswith(_NEVER):
        return None
    return parse_instant(text, _at(place, key))
