"""Links of messages: the service, its dashboards and runbooks, where the settings say where they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote, urlencode

from gpucost.notify.message import Link

FLEET = "gpucost-fleet"
TEAM = "gpucost-team"
JOB = "gpucost-job"
QUEUES = "gpucost-queues"


@dataclass(frozen=True, slots=True)
class Links:
    """Addresses without a slash at the end; an empty one means that there is none, and no link then."""

    service: str = ""
    dashboards: str = ""
    runbooks: str = ""

    def finding(self, record_id: int | None) -> tuple[Link, ...]:
        """The finding in the service."""
        if not self.service or record_id is None:
            return ()
        return (Link("Finding", f"{self.service}/v1/findings/{record_id}"),)

    def dashboard(self, text: str, uid: str, variables: Mapping[str, str]) -> tuple[Link, ...]:
        """A dashboard with its variables set; those that are empty are left out."""
        if not self.dashboards:
            return ()
        query = urlencode(
            {f"var-{name}": value for name, value in variables.items() if value}, quote_via=quote
        )
        return (Link(text, f"{self.dashboards}/d/{uid}{'?' if query else ''}{query}"),)

    def team(self, team: str, cluster: str = "") -> tuple[Link, ...]:
        """The dashboard of a team."""
        return self.dashboard("Team", TEAM, {"cluster": cluster, "team": team}) if team else ()

    def job(self, namespace: str, job: str, cluster: str = "") -> tuple[Link, ...]:
        """The dashboard of a job."""
        return self.dashboard("Job", JOB, {"cluster": cluster, "namespace": namespace, "job": job})
