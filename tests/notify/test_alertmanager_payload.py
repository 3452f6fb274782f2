"""Alertmanager's payload: what it sends is read, what makes no sense is refused and named."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucost.domain.errors import InputError
from gpucost.domain.time import parse_instant
from gpucost.notify.alertmanager import CUT, LONGEST_TEXT, MOST_ALERTS, parse


def an_alert(**changes: Any) -> dict[str, Any]:
    return {
        "status": "firing",
        "labels": {"alertname": "GpuCostIdle", "team": "nlp", "pod": "train-7"},
        "annotations": {"description": "idle"},
        "startsAt": "2026-10-12T08:20:30.123456789+02:00",
        "endsAt": "0001-01-01T00:00:00Z",
        "generatorURL": "http://prometheus:9090/graph?g0.expr=up",
        "fingerprint": "c6b1b3d6d1c0ffee",
        **changes,
    }


def a_payload(**changes: Any) -> dict[str, Any]:
    return {
        "version": "4",
        "groupKey": '{}:{alertname="GpuCostIdle", team="nlp"}',
        "truncatedAlerts": 0,
        "status": "firing",
        "receiver": "gpucost",
        "groupLabels": {"alertname": "GpuCostIdle", "team": "nlp"},
        "commonLabels": {"alertname": "GpuCostIdle", "team": "nlp"},
        "commonAnnotations": {},
        "externalURL": "http://alertmanager:9093",
        "alerts": [an_alert()],
        **changes,
    }


def test_what_it_sends_is_read() -> None:
    group = parse(a_payload())
    assert group.is_firing
    assert group.group_labels == {"alertname": "GpuCostIdle", "team": "nlp"}
    (alert,) = group.alerts
    assert alert.starts_ms == parse_instant("2026-10-12T06:20:30.123Z")
    assert alert.ends_ms is None
    assert alert.fingerprint == "c6b1b3d6d1c0ffee"
    assert alert.finding_id is None


def test_fields_that_are_new_or_missing_do_no_harm() -> None:
    payload = a_payload(somethingNew={"a": [1]}, alerts=[an_alert(alsoNew=1)])
    for key in ("truncatedAlerts", "receiver", "commonAnnotations", "externalURL"):
        del payload[key]
    for key in ("annotations", "endsAt", "generatorURL", "fingerprint"):
        del payload["alerts"][0][key]
    (alert,) = parse(payload).alerts
    assert len(alert.fingerprint) == 16


@pytest.mark.parametrize(
    ("payload", "field"),
    [
        ([], "payload"),
        ({}, "version"),
        (a_payload(version="5"), "version"),
        (a_payload(version=4), "version"),
        (a_payload(status="on fire"), "status"),
        (a_payload(groupKey=None), "groupKey"),
        (a_payload(groupKey=7), "groupKey"),
        (a_payload(alerts=None), "alerts"),
        (a_payload(alerts={"a": 1}), "alerts"),
        (a_payload(alerts=["x"]), "alerts[0]"),
        (a_payload(truncatedAlerts=-1), "truncatedAlerts"),
        (a_payload(truncatedAlerts=True), "truncatedAlerts"),
        (a_payload(truncatedAlerts="2"), "truncatedAlerts"),
        (a_payload(groupLabels=["a"]), "groupLabels"),
        (a_payload(commonLabels={"a": 1}), "commonLabels.a"),
        (a_payload(alerts=[an_alert(labels={"a": None})]), "alerts[0].labels.a"),
        (a_payload(alerts=[an_alert(), an_alert(startsAt="soon")]), "alerts[1].startsAt"),
        (a_payload(alerts=[an_alert(startsAt="2026-10-12T08:20:30")]), "alerts[0].startsAt"),
        (a_payload(alerts=[an_alert(endsAt=3)]), "alerts[0].endsAt"),
        (a_payload(alerts=[an_alert(status="x")]), "alerts[0].status"),
        (a_payload(alerts=[an_alert(labels={f"l{n}": "" for n in range(101)})]), "alerts[0].labels"),
        (a_payload(alerts=[an_alert(annotations={"n" * 1001: ""})]), "alerts[0].annotations"),
    ],
)
def test_what_makes_no_sense_is_refused_and_named(payload: object, field: str) -> None:
    with pytest.raises(InputError) as caught:
        parse(payload)
    assert caught.value.field == field
    assert caught.value.allowed


@pytest.mark.fault(61)
def test_what_was_cut_off_is_counted() -> None:
    many = [an_alert(fingerprint=f"{n:016x}") for n in range(MOST_ALERTS + 3)]
    group = parse(a_payload(alerts=many, truncatedAlerts=4))
    assert len(group.alerts) == MOST_ALERTS
    assert group.truncated == 7


def test_a_long_text_is_cut_with_a_mark() -> None:
    (alert,) = parse(a_payload(alerts=[an_alert(annotations={"description": "x" * 20_000})])).alerts
    text = alert.annotations["description"]
    assert len(text) == LONGEST_TEXT
    assert text.endswith(CUT)


def test_alerts_of_findings_are_told_apart() -> None:
    alerts = [
        an_alert(labels={"finding": "12"}),
        an_alert(labels={"finding": "7"}, status="resolved"),
        an_alert(labels={"finding": "-1"}),
        an_alert(labels={"finding": "١٢"}),
        an_alert(labels={"finding": "9" * 19}),
    ]
    group = parse(a_payload(alerts=alerts))
    assert [each.finding_id for each in group.alerts] == [12, 7, None, None, None]
    rest = group.without(lambda each: each.finding_id in (7, 12))
    assert [each.labels["finding"] for each in rest.alerts] == ["-1", "١٢", "9" * 19]
    assert rest.is_firing
    assert group.without(lambda each: each.finding_id == 99) is group


def test_half_a_surrogate_pair_is_no_character() -> None:
    payload = a_payload(alerts=[an_alert(labels={"team\ud800": "\ud800red\udfff"})], groupKey="k\udc00")
    group = parse(payload)
    assert group.group_key == "k\ufffd"
    assert group.alerts[0].labels["team\ufffd"] == "\ufffdred\ufffd"


def test_a_group_of_findings_alone_has_nothing_left_that_fires() -> None:
    """So that what stood beside them before, and went while no receiver listened, is resolved."""
    group = parse(a_payload(alerts=[an_alert(labels={"finding": "12"})]))
    rest = group.without(lambda each: each.finding_id == 12)
    assert (rest.is_firing, rest.alerts) == (False, ())
    cut = parse(a_payload(alerts=[an_alert(labels={"finding": "12"})], truncatedAlerts=2))
    assert cut.without(lambda _: True).is_firing


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
FIELDS = tuple(a_payload())


@given(st.sampled_from(FIELDS), st.sampled_from(tuple(an_alert())), JSON, JSON)
def test_whatever_is_sent_is_read_or_refused(field: str, inner: str, value: Any, other: Any) -> None:
    for payload in (value, a_payload(**{field: value}), a_payload(alerts=[an_alert(**{inner: other})])):
        with suppress(InputError):
            assert len(parse(payload).group_key) > 0
