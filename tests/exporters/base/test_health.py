"""The answers of /healthz and /readyz."""

from __future__ import annotations

import pytest

from gpucost_exporter_base.endpoint import HealthChecks, parse

REQUEST = parse(b"GET /healthz HTTP/1.1\r\n\r\n")


def test_all_well() -> None:
    response = HealthChecks({"driver": lambda: "", "kubelet": lambda: ""}).answer(REQUEST)
    assert (response.status, response.body) == (200, b"ok\n")


def test_every_problem_is_named() -> None:
    checks = {"driver": lambda: "no answer since 10:00", "kubelet": lambda: "", "dcgm": lambda: "refused"}
    response = HealthChecks(checks).answer(REQUEST)
    assert response.status == 503
    assert response.body == b"driver: no answer since 10:00\ndcgm: refused\n"
    assert response.content_type.startswith("text/plain")


def test_a_check_that_raises_is_a_problem(caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> str:
        raise OSError("gone")

    response = HealthChecks({"driver": broken}).answer(REQUEST)
    assert response.status == 503
    assert b"driver: the check failed: OSError('gone')" in response.body
    assert "driver" in caplog.text
