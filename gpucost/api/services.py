"""What the routes work with, put together by the app factory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request

from gpucost.ledger import Ledger
from gpucost.service.reporting import Reporting
from gpucost.service.settings_api import ApiSettings
from gpucost.service.status import LoopStatus


@dataclass(frozen=True)
class Services:
    """``now`` is the clock in ms UTC; ``status`` is what the service loop says of itself."""

    ledger: Ledger
    reporting: Reporting
    settings: ApiSettings
    now: Callable[[], int]
    status: LoopStatus


def services(request: Request) -> Services:
    """The services of the app that received the request."""
    found = request.app.state.services
    assert isinstance(found, Services)
    return found


Known = Annotated[Services, Depends(services)]
