"""Links between the boards: from team to job to GPU. The time range and the cluster go along.

``cell`` names the column (its *title*) of a table row that holds the value; ``label`` a label of the series
under the pointer. Exactly one of them is given::

    Column("owner_team", "Team", link=links.team(cell="Team"))
    timeseries(…, links=[links.team(label="owner_team")])
"""

from __future__ import annotations

from dashboards.panels import DATASOURCE

FLEET, TEAM, JOB = "gpucost-fleet", "gpucost-team", "gpucost-job"
QUEUES, NODES, SELF = "gpucost-queues", "gpucost-nodes", "gpucost-self"
UIDS = (FLEET, TEAM, JOB, QUEUES, NODES, SELF)

_CONTEXT = f"var-datasource={DATASOURCE}&${{cluster:queryparam}}&${{__url_time_range}}"
Link = dict[str, object]


def team(*, cell: str = "", label: str = "") -> Link:
    """To the Team board of the team in ``cell`` or ``label``."""
    return _to(TEAM, f"Team {_plain(cell, label)}", {"team": _value(cell, label)})


def job(*, name_cell: str, namespace_cell: str) -> Link:
    """To the Job board of the job whose name and namespace stand in these columns of a table."""
    values = {"namespace": _value(namespace_cell, ""), "job": _value(name_cell, "")}
    return _to(JOB, "Job", values)


def node(*, cell: str = "", label: str = "") -> Link:
    """To the board *Nodes and GPUs*, with the node in ``cell`` or ``label`` only."""
    return _to(NODES, f"GPUs of {_plain(cell, label)}", {"node": _value(cell, label)})


def board(uid: str, title: str) -> Link:
    """To a whole board."""
    return _to(uid, title, {})


def _to(uid: str, title: str, values: dict[str, str]) -> Link:
    variables = "".join(f"&var-{name}={value}" for name, value in values.items())
    return {"title": title, "url": f"/d/{uid}?{_CONTEXT}{variables}"}


def _value(cell: str, label: str) -> str:
    """The value in a URL. Names come from users of the cluster, so it is encoded."""
    return _plain(cell, label).replace("}", ":percentencode}")


def _plain(cell: str, label: str) -> str:
    if bool(cell) == bool(label):
        raise ValueError(f"a link takes its value from a cell or from a label: {cell!r}, {label!r}")
    return f'${{__data.fields["{cell}"]}}' if cell else f"${{__field.labels.{label}}}"
