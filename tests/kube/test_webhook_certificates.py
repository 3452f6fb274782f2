"""Certificates that gpucost makes: by openssl, and kept through an API server that has RBAC and conflicts."""

from __future__ import annotations

import base64
import itertools
import random
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpucost.domain.time import DAY_MS, HOUR_MS
from gpucost.kube.certificates.certificate_pair import (
    TRUSTED_SINCE,
    CertificatePair,
    CertificateSpec,
    Unusable,
    authorities_in,
    end_of,
    facts_of,
    kept_in,
    make_pair,
)
from gpucost.kube.certificates.keeper import CertificateKeeper, CertificateObjects
from gpucost.kube.connect.connection import connect_url
from tests.support.ports import free_port
from tests.support.written_objects import Json, ObjectServer, object_server

PAGE = (Path(__file__).parents[2] / "docs" / "webhook.md").read_text(encoding="utf-8")
RULES = [
    rule
    for block in re.findall(r"^```yaml rbac\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    for role in yaml.safe_load_all(block)
    for rule in role["rules"]
]
NAME = "gpucost-webhook.gpucost.svc"
T0 = 1_783_000_000_000
SECRET = "/api/v1/namespaces/gpucost/secrets/gpucost-webhook-tls"
CONFIGURATION = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/gpucost"
WANTED = CertificateSpec(frozenset({NAME}), 90 * DAY_MS, 30 * DAY_MS)
SPREAD, OVER = WANTED.spreads_ms, WANTED.spreads_ms + WANTED.overlap_ms


def configuration() -> Json:
    def hook(name: str) -> Json:
        service = {"namespace": "gpucost", "name": "gpucost-webhook"}
        return {"name": name, "failurePolicy": "Ignore", "clientConfig": {"service": service}}

    return {
        "metadata": {"name": "gpucost"},
        "webhooks": [hook("advice.gpucost.io"), hook("more.gpucost.io")],
    }


@pytest.fixture
def server() -> Iterator[ObjectServer]:
    with object_server(RULES) as found:
        found.put(CONFIGURATION, configuration())
        yield found


@dataclass
class Replica:
    """A keeper with a clock, and the certificates it was given to serve."""

    url: str
    wanted: CertificateSpec = WANTED
    now_ms: int = T0
    shown: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.transport = connect_url(self.url)
        objects = CertificateObjects(self.transport, "gpucost", "gpucost-webhook-tls", "gpucost")
        told = self.shown.append, self.errors.append
        self.keeper = CertificateKeeper(
            objects, self.wanted, lambda: self.now_ms, *told, rng=random.Random(8)
        )

    def look(self, later_ms: int = 0) -> None:
        self.now_ms += later_ms
        assert self.keeper.turn() == self.keeper.every_s, self.errors


@pytest.fixture
def replica(server: ObjectServer) -> Iterator[Callable[..., Replica]]:
    made: list[Replica] = []

    def make(**arguments: Any) -> Replica:
        made.append(Replica(server.url, **arguments))
        return made[-1]

    yield make
    for each in made:
        each.transport.close()


def text(server: ObjectServer, name: str) -> str:
    return base64.b64decode(server.objects[SECRET]["data"].get(name, "")).decode()


def bundles(server: ObjectServer) -> list[str]:
    found = [each["clientConfig"].get("caBundle", "") for each in server.objects[CONFIGURATION]["webhooks"]]
    return [base64.b64decode(each).decode() for each in found]


# Certificates


def test_openssl_accepts_the_chain_for_its_names_only(tmp_path: Path) -> None:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl to verify with")
    now_ms = end_of(make_pair([NAME], T0, 0).certificate)
    assert now_ms == T0
    pair = make_pair([NAME], T0, 90 * DAY_MS)
    for name, content in (("tls.crt", pair.certificate), ("ca.crt", pair.authority)):
        (tmp_path / name).write_text(content)

    def verifies(host: str, at_ms: int = T0 + DAY_MS) -> bool:
        options = ["-x509_strict", "-purpose", "sslserver", "-attime", str(at_ms // 1000)]
        command = [openssl, "verify", *options, "-verify_hostname", host, "-CAfile", "ca.crt", "tls.crt"]
        return subprocess.run(command, cwd=tmp_path, capture_output=True).returncode == 0

    assert verifies(NAME)
    assert not verifies("other.gpucost.svc")
    assert not verifies(NAME, T0 + 91 * DAY_MS)
    assert not verifies(NAME, T0 - 2 * HOUR_MS)
    shown = subprocess.run(
        [openssl, "x509", "-in", "ca.crt", "-noout", "-text"], cwd=tmp_path, capture_output=True, text=True
    ).stdout
    assert "CA:TRUE, pathlen:0" in shown
    assert f"Permitted:\n                  DNS:{NAME}" in shown
    assert "BEGIN" not in repr(pair).partition("authority")[0].partition("certificate")[0]
    assert "PRIVATE" not in repr(pair)


_PAIR, _OTHER = (make_pair([NAME], T0, DAY_MS) for _ in range(2))


@pytest.mark.parametrize(
    ("pair", "says"),
    [
        (replace(_PAIR, key=_OTHER.key), "another certificate"),
        (replace(_PAIR, authority=_OTHER.authority), "did not sign"),
        (replace(_PAIR, certificate=_PAIR.key), "not a certificate"),
        (replace(_PAIR, key=""), "not a certificate"),
        (make_pair([NAME], T0 - 2 * DAY_MS, DAY_MS), "expired"),
        (make_pair([NAME], T0 + DAY_MS, DAY_MS), "not hold yet"),
    ],
    ids=["key", "authority", "key as certificate", "no key", "expired", "of tomorrow"],
)
def test_what_cannot_be_used_is_told_apart(pair: CertificatePair, says: str) -> None:
    assert facts_of(_PAIR, T0).names == {NAME}
    with pytest.raises(Unusable, match=says) as raised:
        facts_of(pair, T0)
    assert "PRIVATE" not in str(raised.value)


def test_a_bundle_of_nonsense_and_an_expired_authority_are_none() -> None:
    old, new = make_pair([NAME], T0 - 9 * DAY_MS, DAY_MS), make_pair([NAME], T0, DAY_MS)
    assert authorities_in(old.authority + new.authority + new.authority, T0) == (new.authority,)
    assert authorities_in("nonsense", T0) == ()


# Kept


def test_the_first_look_makes_everything(server: ObjectServer, replica: Callable[..., Replica]) -> None:
    one = replica()
    one.look()
    kept = kept_in(server.objects[SECRET], T0)
    assert server.objects[SECRET]["type"] == "kubernetes.io/tls"
    assert one.shown == [kept.newest.pem]
    assert bundles(server) == [text(server, "ca.crt")] * 2 == [kept.newest.authority] * 2
    assert one.keeper.end_ms() == T0 + 90 * DAY_MS
    found = deepcopy(server.objects[CONFIGURATION]["webhooks"])
    for each in found:
        each["clientConfig"].pop("caBundle")
    assert found == configuration()["webhooks"], "nothing else was touched"
    writes = sum(map(len, map(server.answered, ("POST", "PUT", "PATCH"))))
    assert writes == 3
    one.look(DAY_MS)
    assert sum(map(len, map(server.answered, ("POST", "PUT", "PATCH")))) == writes, "nothing was to be done"


def test_a_renewal_is_trusted_before_it_is_shown_and_the_old_until_after(
    server: ObjectServer, replica: Callable[..., Replica]
) -> None:
    one = replica()
    one.look()
    old = kept_in(server.objects[SECRET], T0).newest
    one.look(60 * DAY_MS + 1)
    kept = kept_in(server.objects[SECRET], one.now_ms)
    new = kept.newest
    assert (kept.authorities, kept.previous) == ((new.authority, old.authority), old)
    assert bundles(server) == [new.authority + old.authority] * 2
    assert one.shown == [old.pem]
    late = replica(now_ms=one.now_ms)
    late.look(SPREAD - 1)
    assert late.shown == [old.pem], "a replica that starts now shows what every API server trusts"
    for each in (one, late):
        each.now_ms = T0 + 60 * DAY_MS + 1 + SPREAD
        each.look()
    assert one.shown == late.shown == [old.pem, new.pem]
    assert bundles(server) == [new.authority + old.authority] * 2
    one.look(OVER)
    assert bundles(server) == [new.authority] * 2
    assert text(server, "previous.key") == ""
    late.look(OVER)
    assert one.shown == late.shown == [old.pem, new.pem]
    assert not one.errors


def test_two_replicas_at_once_agree_on_one(server: ObjectServer, replica: Callable[..., Replica]) -> None:
    both = [replica(), replica()]

    def together(later_ms: int) -> None:
        barrier, writes = threading.Barrier(2), itertools.count()

        def wait(method: str, path: str) -> None:
            """Both have read before either writes; a later write of one of them does not wait."""
            is_write = method in {"POST", "PUT"} and path.startswith(SECRET.rpartition("/")[0])
            if is_write and next(writes) < 2:
                barrier.wait(60)

        server.before = wait
        threads = [threading.Thread(target=each.look, args=(later_ms,)) for each in both]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        server.before = lambda method, path: None  # noqa: ARG005

    together(0)
    assert sorted(server.answered("POST")) == [201, 409]
    for each in both:
        each.look(SPREAD)
    first = kept_in(server.objects[SECRET], T0 + SPREAD).newest
    assert both[0].shown[-1] == both[1].shown[-1] == first.pem
    together(70 * DAY_MS)
    assert 409 in server.answered("PUT")
    for each in both:
        each.look(SPREAD)
    second = kept_in(server.objects[SECRET], both[0].now_ms).newest
    assert both[0].shown[-1] == both[1].shown[-1] == second.pem != first.pem
    assert bundles(server) == [second.authority + first.authority] * 2


def _data(change: dict[str, str]) -> Callable[[Json], Json]:
    return lambda secret: {**secret, "data": {**secret["data"], **change}}


@pytest.mark.parametrize(
    "broken",
    [
        _data({"tls.crt": "%%%"}),
        _data({"tls.key": base64.b64encode(b"nonsense").decode()}),
        _data({"tls.key": base64.b64encode(make_pair([NAME], T0, DAY_MS).key.encode()).decode()}),
        _data({"ca.crt": ""}),
        lambda secret: {key: value for key, value in secret.items() if key != "data"},
        lambda secret: {**secret, "data": [1]},
        None,
    ],
    ids=["no base64", "no key", "another key", "no authority", "empty", "no data", "deleted"],
)
def test_a_broken_secret_is_replaced_and_what_is_shown_stays_trusted(
    server: ObjectServer, replica: Callable[..., Replica], broken: Callable[[Json], Json] | None
) -> None:
    one = replica()
    one.look()
    old = one.shown[0]
    authority = bundles(server)[0]
    if broken is None:
        del server.objects[SECRET]
    else:
        server.put(SECRET, broken(server.objects[SECRET]))
    one.look(DAY_MS)
    new = kept_in(server.objects[SECRET], one.now_ms).newest
    assert new.pem != old
    assert one.shown == [old]
    assert bundles(server) == [new.authority + authority] * 2
    one.look(SPREAD)
    assert one.shown == [old, new.pem]


def test_an_empty_secret_made_beforehand_needs_no_right_to_create(
    server: ObjectServer, replica: Callable[..., Replica]
) -> None:
    server.rules = [rule for rule in server.rules if rule["verbs"] != ["create"]]
    labels = {"app.kubernetes.io/managed-by": "Helm"}
    server.put(SECRET, {"type": "Opaque", "metadata": {"name": "gpucost-webhook-tls", "labels": labels}})
    one = replica()
    one.look()
    assert one.shown == [kept_in(server.objects[SECRET], T0).newest.pem]
    assert server.objects[SECRET]["metadata"]["labels"] == labels
    assert server.objects[SECRET]["type"] == "Opaque"
    del server.objects[SECRET]
    assert one.keeper.turn() < one.keeper.every_s
    assert one.errors == ["http_403"]
    assert len(one.shown) == 1


def test_other_names_are_added_at_once_and_replicas_of_two_settings_do_not_take_turns(
    server: ObjectServer, replica: Callable[..., Replica]
) -> None:
    old, new = replica(), replica(wanted=replace(WANTED, names=frozenset({"other.gpucost.svc"})))
    old.look()
    new.look()
    found = facts_of(kept_in(server.objects[SECRET], T0).newest, T0).names
    assert found == {NAME, "other.gpucost.svc"}
    puts = len(server.answered("PUT"))
    old.look()
    new.look()
    assert len(server.answered("PUT")) == puts
    new.look(70 * DAY_MS)
    assert facts_of(kept_in(server.objects[SECRET], new.now_ms).newest, new.now_ms).names == {
        "other.gpucost.svc"
    }


def test_a_lost_update_and_a_changed_configuration_are_read_again(
    server: ObjectServer, replica: Callable[..., Replica]
) -> None:
    behind = {CONFIGURATION, SECRET}

    def meddle(method: str, path: str) -> None:
        if method in {"PATCH", "PUT"} and path in behind:
            behind.remove(path)
            changed = server.objects[path]
            server.put(path, {**changed, "metadata": {**changed["metadata"], "labels": {"by": "else"}}})

    server.before = meddle
    one = replica()
    one.look()
    assert server.answered("PATCH") == [422, 200]
    assert server.objects[CONFIGURATION]["metadata"]["labels"] == {"by": "else"}
    assert server.answered("PUT") == [409]
    one.look()
    assert server.answered("PUT") == [409, 200], "the annotation is written at the next look"
    assert TRUSTED_SINCE in server.objects[SECRET]["metadata"]["annotations"]
    assert server.objects[SECRET]["metadata"]["labels"] == {"by": "else"}


def test_a_bundle_that_somebody_took_out_comes_back(
    server: ObjectServer, replica: Callable[..., Replica]
) -> None:
    one = replica()
    one.look()
    server.put(CONFIGURATION, configuration())
    one.look(DAY_MS)
    assert bundles(server) == [text(server, "ca.crt")] * 2


@pytest.mark.parametrize("status", [403, 429, 500, 503])
def test_without_kubernetes_what_is_there_is_shown_on(
    server: ObjectServer, replica: Callable[..., Replica], status: int, caplog: pytest.LogCaptureFixture
) -> None:
    one = replica()
    one.look()
    server.before = lambda method, path: status  # noqa: ARG005
    one.now_ms += 70 * DAY_MS
    pauses = [one.keeper.turn() for _ in range(20)]
    assert one.errors == [f"http_{status}"] * 20
    assert max(pauses) <= one.keeper.every_s
    assert max(pauses[:2]) < max(pauses[4:])
    assert len(one.shown) == 1
    server.before = lambda method, path: None  # noqa: ARG005
    one.look()
    one.look(SPREAD)
    assert len(one.shown) == 2
    assert "PRIVATE" not in caplog.text


def test_a_renewal_under_way_ends_though_kubernetes_has_gone(
    server: ObjectServer, replica: Callable[..., Replica]
) -> None:
    one = replica()
    one.look()
    one.look(70 * DAY_MS)
    server.before = lambda method, path: 503  # noqa: ARG005
    one.now_ms += SPREAD
    one.keeper.turn()
    assert one.shown[1:] == [kept_in(server.objects[SECRET], one.now_ms).newest.pem]


def test_an_authority_that_nobody_may_write_is_not_shown_while_the_old_one_holds(
    server: ObjectServer, replica: Callable[..., Replica]
) -> None:
    one = replica()
    one.look()
    server.rules = [rule for rule in server.rules if "patch" not in rule["verbs"]]
    one.now_ms += 70 * DAY_MS
    one.keeper.turn()
    one.now_ms += OVER
    one.keeper.turn()
    assert one.errors == ["http_403"] * 2
    assert len(one.shown) == 1
    one.now_ms = T0 + 91 * DAY_MS
    one.keeper.turn()
    assert one.shown[1:] == [kept_in(server.objects[SECRET], one.now_ms).newest.pem], "the old one has ended"


def test_an_api_server_that_is_not_there_is_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    one = Replica(f"http://127.0.0.1:{free_port()}")
    assert 0 < one.keeper.turn() <= one.keeper.every_s
    assert (one.errors, one.shown, one.keeper.end_ms()) == (["unreachable"], [], None)
    assert "cannot be looked after" in caplog.text
    one.transport.close()
