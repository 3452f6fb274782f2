"""Addresses of the pages: one function a page, for templates, messages and commands alike.

Each is a path with its query, to be put after the address of the service. The address is the whole state of a
page, so that a link shows the next reader the same, within what they may see. Names stand in the query, since
they may hold slashes; an argument that is empty or None is left out. The parameters are those of the routes
of ``gpucost.api.pages``, and called like those of ``/v1``.
"""

from __future__ import annotations

from urllib.parse import quote, urlencode

from gpucost.domain.time import Month

HOME = "/"
SEARCH = "/search"
LOGIN = "/login"
LOGIN_START = "/login/start"
CALLBACK = "/login/callback"
LOGOUT = "/logout"
ADVISE = "/advise"
EXPLAIN = "/explain"
METHODOLOGY = "methodology"
"""The page of the method that is shown first."""


def month_page(month: Month | str, *, cluster: str = "") -> str:
    """Who pays what in a month."""
    return address(f"/month/{month}", cluster=cluster)


def team_page(
    team: str,
    month: Month | str,
    *,
    sort: str = "",
    name: str = "",
    kind: str = "",
    page: int | str = "",
    anchor: str = "",
) -> str:
    """What one team pays and holds in a month; ``sort``, ``name``, ``kind`` and ``page`` are of its jobs."""
    query = {"team": team, "sort": sort, "name": name, "kind": kind, "page": str(page)}
    return address(f"/month/{month}/team", anchor, **query)


def job_page(
    job: str, *, cluster: str = "", progress: str = "", page: int | str = "", anchor: str = ""
) -> str:
    """One job, by uid, name or NAMESPACE/NAME; several of that name are offered to choose from. ``page`` is
    of its intervals."""
    return address("/job", anchor, job=job, cluster=cluster, progress=progress, page=str(page))


def queues_page(*, cluster: str = "", queue: str = "") -> str:
    """Quota, use and who waits, now; ``queue`` is a ClusterQueue, or a queue of Volcano."""
    return address("/queues", cluster=cluster, queue=queue)


def nodes_page(*, cluster: str = "", node: str = "") -> str:
    """Who is on which GPU, now."""
    return address("/nodes", cluster=cluster, node=node)


def findings_page(*, state: str = "", pattern: str = "", team: str = "", cluster: str = "") -> str:
    """What is wrong and what it costs, the dearest first."""
    return address("/findings", state=state, pattern=pattern, team=team, cluster=cluster)


def finding_page(finding_id: int) -> str:
    """One finding: evidence, the change to make, its history."""
    return address(f"/finding/{finding_id}")


def explanation_page(kind: str, namespace: str, name: str) -> str:
    """What holds a job that waits."""
    return address(EXPLAIN, kind=kind, namespace=namespace, name=name)


def preview_page(month: Month | str) -> str:
    """What teams would pay for a month under other policies."""
    return address(f"/month/{month}/preview")


def what_if_page(month: Month | str, *, replay: str = "", scenario: str = "") -> str:
    """What a month would have been under other rules: a replay that was kept."""
    return address(f"/month/{month}/what-if", replay=replay, scenario=scenario)


def change_page(month: Month | str, *, team: str = "", charged: bool = False) -> str:
    """A month beside the one before."""
    return address(f"/month/{month}/change", team=team, charged="true" if charged else "")


def data_page(month: Month | str) -> str:
    """Coverage, gaps, sources and problems of a month."""
    return address(f"/month/{month}/data")


def search_page(text: str = "", month: Month | str = "") -> str:
    """Jobs, teams, people, queues and nodes by name."""
    return address(SEARCH, q=text, month=str(month))


def method_page(anchor: str = "", page: str = METHODOLOGY) -> str:
    """The method: docs/``page``.md, at one of its headings."""
    return address("/method" if page == METHODOLOGY else f"/method/{quote(page)}", anchor)


def address(path: str, anchor: str = "", **query: str | None) -> str:
    """``path`` with the ``query`` of what is not empty, in its order, and ``#anchor``."""
    asked = urlencode({name: text for name, text in query.items() if text}, quote_via=quote)
    fragment = f"#{quote(anchor, safe='')}" if anchor else ""
    return f"{path}{'?' if asked else ''}{asked}{fragment}"
