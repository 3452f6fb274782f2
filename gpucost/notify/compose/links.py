"""Links of messages: to the service, its dashboards and runbooks, at the addresses of the settings.

A person's browser has no key of the API, so there is a link into the service only where the settings say that
a browser may open it; messages name the command that shows the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote, urlencode, urlsplit

from gpucost.detectors.findings import FindingSubject, SubjectKind, WastePattern
from gpucost.domain.time import Window
from gpucost.notify.message import MessageLink

FLEET = "gpucost-fleet"
TEAM = "gpucost-team"
JOB = "gpucost-job"
QUEUES = "gpucost-queues"
NODES = "gpucost-nodes"


@dataclass(frozen=True, slots=True)
class MessageLinks:
    """Addresses without a slash at the end; an empty one means that there is none, and no link then.
    ``hosts`` are further hosts to which addresses of alerts may lead."""

    service: str = ""
    dashboards: str = ""
    runbooks: str = ""
    hosts: tuple[str, ...] = ()

    def may_lead_to(self, url: str) -> bool:
        """Whether a foreign address is of a host that the settings name."""
        own = (urlsplit(each).hostname for each in (self.service, self.dashboards, self.runbooks))
        return urlsplit(url).hostname in {*own, *(each.lower() for each in self.hosts)} - {None}

    def finding(self, record_id: int | None) -> tuple[MessageLink, ...]:
        """The finding in the service."""
        if not self.service or record_id is None:
            return ()
        return (MessageLink("Finding", f"{self.service}/v1/findings/{record_id}"),)

    def runbook(self, pattern: WastePattern) -> tuple[MessageLink, ...]:
        """The page of the alert about an anti-pattern, with what to do about it."""
        return (MessageLink("Runbook", f"{self.runbooks}/{pattern.alert}.md"),) if self.runbooks else ()

    def dashboard(
        self, text: str, uid: str, variables: Mapping[str, str], window: Window | None = None
    ) -> tuple[MessageLink, ...]:
        """A dashboard with its variables set, at ``window`` where one is given; variables that are empty are
        left out."""
        if not self.dashboards:
            return ()
        asked = {f"var-{name}": value for name, value in variables.items() if value}
        if window is not None:
            asked |= {"from": str(window.start_ms), "to": str(window.end_ms)}
        query = urlencode(asked, quote_via=quote)
        return (MessageLink(text, f"{self.dashboards}/d/{uid}{'?' if query else ''}{query}"),)

    def subject(self, subject: FindingSubject) -> tuple[MessageLink, ...]:
        """The dashboard of a finding's subject; none for a team, whose dashboard is linked in any case."""
        cluster = subject.cluster
        match subject.kind:
            case SubjectKind.JOB:
                return self.job(subject.namespace, subject.name, cluster)
            case SubjectKind.QUEUE:
                return self.dashboard("Queues", QUEUES, {"cluster": cluster, "queue": subject.name})
            case SubjectKind.NODE:
                return self.dashboard("Nodes", NODES, {"cluster": cluster, "node": subject.name})
            case SubjectKind.CLUSTER:
                return self.fleet(cluster)
            case SubjectKind.TEAM:
                return ()

    def fleet(self, cluster: str = "", window: Window | None = None) -> tuple[MessageLink, ...]:
        """The dashboard of the fleet."""
        return self.dashboard("Fleet", FLEET, {"cluster": cluster}, window)

    def team(self, team: str, cluster: str = "", window: Window | None = None) -> tuple[MessageLink, ...]:
        """The dashboard of a team."""
        return self.dashboard("Team", TEAM, {"cluster": cluster, "team": team}, window) if team else ()

    def job(self, namespace: str, job: str, cluster: str = "") -> tuple[MessageLink, ...]:
        """The dashboard of a job."""
        return self.dashboard("Job", JOB, {"cluster": cluster, "namespace": namespace, "job": job})
