"""The bill of the cluster that a module scripts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.end_to_end.fixture_cluster import BilledCluster, billed


@pytest.fixture(scope="module")
def bill(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BilledCluster]:
    """Of ``script()`` of the module, played once."""
    with billed(request.module.script(), tmp_path_factory.mktemp("bill")) as found:
        yield found
