"""The scripted hour, played once for all that read it (they share the group ``hour``)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.exporters.gpu.played import Played, played_hour


@pytest.fixture(scope="session")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Played]:
    with played_hour(tmp_path_factory.mktemp("hour")) as found:
        yield found
