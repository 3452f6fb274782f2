"""The service as it runs, over HTTP and PostgreSQL, against its own description."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.fuzzing import SECRETS, fuzz, running_service
from tests.support.postgres import postgres_server

EXAMPLES = 2
"""``benchmarks/fuzz.py`` tries more."""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("fuzz")
    with (
        postgres_server() as server,
        server.database("fuzz") as url,
        running_service(folder, url) as found,
    ):
        yield found


@pytest.mark.slow
@pytest.mark.fault(50)
@pytest.mark.parametrize("key_id", SECRETS)
def test_no_request_breaks_the_service_or_its_description(address: str, key_id: str) -> None:
    found = fuzz(address, key_id, EXAMPLES)
    assert not found.violations, "\n".join(found.violations.values())
    assert found.server_errors == 0
    assert found.operations > 20
    assert found.statuses[200] > 5
    assert found.statuses[400] + found.statuses[422] > 10, "some of it was wrong on purpose"
    assert (found.statuses[403] > 0) == (key_id != "root")
