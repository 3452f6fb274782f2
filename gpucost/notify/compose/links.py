"""Links of messages: to pages of the service, to dashboards and runbooks, at the addresses of the settings.

A message has one link to read on at: to its page, where the settings name the address of the service, else to
a dashboard. A browser logs in there, and sees what its user may see. Messages name the command that shows the
same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote, urlencode, urlsplit

from gpucost.detectors.findings import FindingSubject, SubjectKind, WastePattern
from gpucost.domain.time import Month, Window
from gpucost.notify.message import MessageLink
from gpucost.reports.base.page_addresses import (
    data_page,
    explanation_page,
    finding_page,
    job_page,
    month_page,
    nodes_page,
    queues_page,
    team_page,
)

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

    def page(self, text: str, path: str) -> tuple[MessageLink, ...]:
        """A page of the service; ``path`` is one of ``reports.base.page_addresses``."""
        return (MessageLink(text, f"{self.service}{path}"),) if self.service else ()

    def finding(self, record_id: int | None) -> tuple[MessageLink, ...]:
        """The page of a finding."""
        return () if record_id is None else self.page("Finding", finding_page(record_id))

    def month(self, month: Month, team: str, window: Window | None = None) -> tuple[MessageLink, ...]:
        """The page of a month, or of a team in it; else the dashboard at ``window``, else that month."""
        then = window or month.window
        if team:
            return self.page("Team", team_page(team, month)) or self.team(team, window=then)
        return self.page("Month", month_page(month)) or self.fleet(window=then)

    def alert(self, labels: Mapping[str, str], month: Month) -> tuple[MessageLink, ...]:
        """The page of what an alert of gpucost's own is about, by its labels; none for other alerts."""
        if not labels.get("alertname", "").startswith("GpuCost"):
            return ()
        found, cluster = labels.get("finding", ""), labels.get("cluster", "")
        if found.isascii() and found.isdigit():
            return self.finding(int(found))
        if node := labels.get("node", ""):
            return self.page("Node", nodes_page(cluster=cluster, node=node))
        if queue := labels.get("cluster_queue", ""):
            return self.page("Queue", queues_page(cluster=cluster, queue=queue))
        if team := labels.get("team", ""):
            return self.page("Team", team_page(team, month))
        return self.page("Data", data_page(month))

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

    def one_job(self, job_uid: str, namespace: str, job: str, cluster: str) -> tuple[MessageLink, ...]:
        """The page of a job, else its dashboard."""
        return self.page("Job", job_page(job_uid, cluster=cluster)) or self.job(namespace, job, cluster)

    def waiting(self, kind: str, namespace: str, name: str, cluster: str) -> tuple[MessageLink, ...]:
        """The page that says what holds a job, else the dashboard of the queues."""
        found = self.page("Why it waits", explanation_page(kind, namespace, name))
        return found or self.dashboard("Queues", QUEUES, {"cluster": cluster})

    def job(self, namespace: str, job: str, cluster: str = "") -> tuple[MessageLink, ...]:
        """The dashboard of a job."""
        return self.dashboard("Job", JOB, {"cluster": cluster, "namespace": namespace, "job": job})
