"""gpucost explain: what holds an existing job back, layer by layer.

The job is given as KIND/NAME as kubectl takes it: kinds in any case, their plurals, short names, and with
their group.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Annotated, Literal, NamedTuple

import typer

from gpucost.cli.advise.advice_source import (
    AdviceSource,
    At,
    Prices,
    State,
    currency_of,
    knowledge,
    server_of,
)
from gpucost.cli.advise.advise_command import print_text, screen_width, write_json
from gpucost.cli.state.state_command import (
    ContextName,
    ExtraResources,
    Kubeconfig,
    TeamLabels,
    Url,
)
from gpucost.cli.terminal.context import context_of, now_ms
from gpucost.cli.terminal.exit_codes import fields_as
from gpucost.domain.errors import ErrorRemark, InputError
from gpucost.domain.jobs import job_kind


def explain(
    ctx: typer.Context,
    subject: Annotated[
        str,
        typer.Argument(
            metavar="KIND/NAME",
            help="As kubectl takes it: pytorchjob/train, vcjob/sim, deploy/api, workload/job-train-1a2b3, "
            "pod/train-0.",
        ),
    ],
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", metavar="NAME", help="Where it is; else default.")
    ] = "default",
    state: State = "",
    kubeconfig: Kubeconfig = None,
    context: ContextName = "",
    kubernetes_url: Url = "",
    prices: Prices = None,
    at: At = "",
    format_: Annotated[
        Literal["text", "json"], typer.Option("--format", "-f", help="text for people, json for programs.")
    ] = "text",
    team_labels: TeamLabels = "",
    extra_resources: ExtraResources = "",
) -> None:
    """Why a job does not run, or runs badly: the walk through quota, gang and placement, device, running.

    The first line is the answer: the first layer that holds it. Below it every layer, since when it is so,
    and the objects and fields that say so; then what to do.

    With --format json one gpucost/Explanation/v1 document.
    """
    from gpucost.advisor.explanation import job_explanation as explainer
    from gpucost.advisor.model.encoding import document
    from gpucost.cli.advise.advice_screen import AdviceLayout, explanation_lines

    kind, name = kind_reference(subject)
    asked = AdviceSource(
        state,
        kubeconfig,
        context,
        kubernetes_url,
        at,
        prices,
        namespace,
        team_labels,
        extra_resources,
    )
    remote = server_of(context_of(ctx), asked)
    if remote is not None:
        with fields_as({"name": "KIND/NAME", "namespace": "--namespace"}):
            found = remote.explanation(kind, namespace, name)
        advised = () if found.advice is None else (found.advice,)
        currency, at_ms = currency_of(advised, found.actions), now_ms()
    else:
        known = knowledge(context_of(ctx), asked)
        explained = explainer.explain(kind, namespace, name, known)
        if explained is None:
            remark = ErrorRemark(f"no {kind} {name} in namespace {namespace}")
            raise InputError("KIND/NAME", remark, "what is there; -n NAME says in which namespace")
        found, at_ms = explained, known.overview.state.at_ms
        currency = known.prices.currency if known.prices is not None else ""
    if format_ == "json":
        write_json(document(found))
        return
    look = AdviceLayout(screen_width(), currency)
    print_text(explanation_lines(found, at_ms, look))


SHORT: Mapping[str, str] = {
    "po": "Pod",
    "deploy": "Deployment",
    "sts": "StatefulSet",
    "rs": "ReplicaSet",
    "ds": "DaemonSet",
    "cj": "CronJob",
    "vcjob": "VolcanoJob",
    "vj": "VolcanoJob",
    "lws": "LeaderWorkerSet",
    "wl": "Workload",
    "pg": "PodGroup",
}
"""Short names of Kubernetes, Volcano, Kueue and LeaderWorkerSet."""
_KINDS_OF_FIELDS = {"workloads": "Workload", "pod_groups": "PodGroup"}
_EXAMPLES = "KIND/NAME such as pytorchjob/train, vcjob/sim or workload/job-train-1a2b3"


class KindReference(NamedTuple):
    """``kind`` in gpucost's spelling: a JobKind, ``Workload`` (of Kueue) or ``PodGroup``."""

    kind: str
    name: str


def kind_reference(text: str, field: str = "KIND/NAME") -> KindReference:
    """``pytorchjobs.kubeflow.org/train`` -> PyTorchJob, train. Raises InputError."""
    kind, slash, name = text.partition("/")
    if not slash or not kind or not name or "/" in name:
        raise InputError(field, text, _EXAMPLES)
    found = _kinds().get(kind.lower())
    if found is None:
        raise InputError(field, text, f"a kind among {', '.join(sorted(set(_kinds().values())))}")
    return KindReference(found, name)


@cache
def _kinds() -> Mapping[str, str]:
    """Kinds by every name in lower case. A name that two groups share is that of the first of the
    collections."""
    from gpucost.kube.parse.collections import collections

    found = dict(SHORT)
    for each in collections():
        if each.field in ("jobs", "pods"):
            kind = job_kind(f"{each.group}/{each.versions[0]}" if each.group else "v1", each.kind).value
        elif each.field in _KINDS_OF_FIELDS:
            kind = _KINDS_OF_FIELDS[each.field]
        else:
            continue
        for name in (each.plural, each.kind.lower(), kind.lower()):
            found.setdefault(name, kind)
            if each.group:
                found.setdefault(f"{name}.{each.group}", kind)
    return found
