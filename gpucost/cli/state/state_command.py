"""gpucost state: the queues, gangs and nodes of a cluster now, on one screen or in a file for later."""

from __future__ import annotations

import gc
import gzip
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import IO, TYPE_CHECKING, Annotated, Any, Literal

import typer

from gpucost.cli.terminal.context import context_of, now_ms
from gpucost.cli.terminal.exit_codes import complain
from gpucost.cli.terminal.output import stdout, write
from gpucost.domain.errors import InputError

if TYPE_CHECKING:
    from gpucost.cli.state.source import ClusterLocation
    from gpucost.cluster.objects.metadata import OwnerKeys
    from gpucost.domain.gpu import ResourceCatalog
    from gpucost.kube.dumps.dump import DumpContent
    from gpucost.kube.parse.collections import ApiCollection
    from gpucost.kube.parse.events import Object
    from gpucost.kube.watch.api_calls import CollectionList
    from gpucost.reports.live.state_facts import StateFacts

app = typer.Typer(
    no_args_is_help=True, help="Look at a cluster: queues, gangs, nodes.", rich_markup_mode=None
)

Kubeconfig = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="How to reach the API server; else KUBECONFIG, the pod's own, ~/.kube/config."
    ),
]
ContextName = Annotated[
    str, typer.Option("--context", metavar="NAME", help="Context of the kubeconfig; else its current one.")
]
Url = Annotated[
    str,
    typer.Option(
        metavar="URL", help="An API server that needs no credentials, such as kubectl proxy, instead of both."
    ),
]
TeamLabels = Annotated[
    str,
    typer.Option(
        metavar="NAMES",
        help="Labels or annotations that name the team, with commas; else gpucost.io/team,team.",
    ),
]

ExtraResources = Annotated[
    str,
    typer.Option(
        metavar="NAMES",
        help="Further resources of which one unit is a whole GPU, with commas, as the queue collector's "
        "extra_resources.",
    ),
]


KINDS = (
    "pods,nodes,namespaces,priorityclasses.scheduling.k8s.io,poddisruptionbudgets.policy,"
    "jobs.batch,cronjobs.batch,"
    "deployments.apps,statefulsets.apps,replicasets.apps,daemonsets.apps,jobsets.jobset.x-k8s.io,"
    "trainjobs.trainer.kubeflow.org,pytorchjobs.kubeflow.org,tfjobs.kubeflow.org,"
    "xgboostjobs.kubeflow.org,paddlejobs.kubeflow.org,jaxjobs.kubeflow.org,mpijobs.kubeflow.org,"
    "rayjobs.ray.io,rayclusters.ray.io,rayservices.ray.io,leaderworkersets.leaderworkerset.x-k8s.io,"
    "notebooks.kubeflow.org,jobs.batch.volcano.sh,clusterqueues.kueue.x-k8s.io,"
    "localqueues.kueue.x-k8s.io,cohorts.kueue.x-k8s.io,resourceflavors.kueue.x-k8s.io,"
    "topologies.kueue.x-k8s.io,admissionchecks.kueue.x-k8s.io,workloadpriorityclasses.kueue.x-k8s.io,"
    "workloads.kueue.x-k8s.io,podgroups.scheduling.volcano.sh,queues.scheduling.volcano.sh,"
    "hypernodes.topology.volcano.sh,resourceslices.resource.k8s.io,resourceclaims.resource.k8s.io,"
    "devicetaintrules.resource.k8s.io,computedomains.resource.nvidia.com"
)
"""Everything that the screen uses, in kubectl's spelling; gpucost.kube.parse.collections has the same, and a
test compares both. Written out, so that the help needs no parsers."""

_KUBECTL = f"""Without gpucost on the other side, kubectl makes a dump; kinds that the cluster does not have
are left out of the list before:

\b
kubectl get {KINDS} -A -o json > state.json
"""


@app.command()
def dump(
    to: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Else stdout. Gzipped where its name ends in .gz.")
    ] = None,
    kubeconfig: Kubeconfig = None,
    context: ContextName = "",
    kubernetes_url: Url = "",
    team_labels: TeamLabels = "",
) -> None:
    """Write all objects that gpucost reads from a cluster, as kubectl get -o json would.

    Only the fields that gpucost reads: no environments, commands, arguments, images, volumes or
    configurations; of annotations those that link objects or name a team, project or user; of messages the
    first 4,096 characters of those that show prints. Labels stay as they are. The file is readable by you
    alone, and whole or not there. Collections that may not be listed are named on stderr and left out;
    without pods and nodes there is no dump (exit code 3).
    """
    from gpucost.cli.state.source import (
        ClusterLocation,
        connected,
        listed,
        scheduler_configurations,
    )
    from gpucost.kube.dumps.dump import line_of, named
    from gpucost.kube.parse.collections import collections

    keys = owner_keys(team_labels)
    annotations = frozenset(keys.all)

    def take(collection: ApiCollection, version: str, item: Object) -> str:
        return line_of(named(collection, version, item), annotations)

    at_ms, where = now_ms(), ClusterLocation(kubeconfig, context, kubernetes_url)
    with connected(where) as transport, _opened(to, at_ms) as write_text:
        more = (line_of(item, annotations) for item in scheduler_configurations(transport))
        for text in _dump(listed(transport, collections(keys.all), take), more, at_ms):
            write_text(text)


@app.command(epilog=_KUBECTL)
def show(
    ctx: typer.Context,
    source: Annotated[
        str,
        typer.Option(
            "--from", metavar="PATH", help="A dump, a folder of them, or - for stdin, instead of a cluster."
        ),
    ] = "",
    everything: Annotated[bool, typer.Option("--all", help="Long lists whole.")] = False,
    format_: Annotated[
        Literal["table", "json"], typer.Option("--format", "-f", help="table for people, json for programs.")
    ] = "table",
    at: Annotated[
        str,
        typer.Option(metavar="TIME", help="Waits count until then; else until the dump was taken, or now."),
    ] = "",
    kubeconfig: Kubeconfig = None,
    context: ContextName = "",
    kubernetes_url: Url = "",
    team_labels: TeamLabels = "",
    extra_resources: ExtraResources = "",
    namespace: Annotated[str, typer.Option(metavar="NAME", help="Only what waits in this namespace.")] = "",
    team: Annotated[str, typer.Option(metavar="NAME", help="Only what waits of this team.")] = "",
    queue: Annotated[str, typer.Option(metavar="NAME", help="Only this ClusterQueue or Volcano queue.")] = "",
    job: Annotated[str, typer.Option(metavar="NAME", help="Only this job, or workload.")] = "",
    explain: Annotated[bool, typer.Option("--explain", help="Say what columns and words mean.")] = False,
) -> None:
    """Show the queues with their quota, who borrows, who waits and why, partial gangs, and nodes that lack
    GPUs.

    The server that one is logged in to is asked, where no option names a cluster or a dump; it says so. What
    is of other teams than one's own is left out then. Without a server, the dump of detectors.dump is read
    where the settings name one, else the cluster of the kubeconfig.

    A dump is what gpucost state dump writes, or kubectl get … -A -o json (or yaml) with the kinds below: a
    file or a folder of files, gzipped or not. What gpucost does not read in it is counted on stderr; what it
    lacks, the screen names.

    Long lists are cut, and names that a terminal has no room for; with --all neither is. In a pipe names are
    whole, unless COLUMNS says how wide it is.

    With --format json the same facts, nothing cut: at, is_dated, nodes, gpu_nodes, pods, gpu_pods, workloads,
    gpus, absent, forbidden, unread, left_out, queues, loans, volcano_queues, waiting, partial_gangs,
    short_nodes, problem_counts, problems, usage, sent, teams_in_scope. Amounts are GPU units by resource
    name, times RFC 3339; what is not known is null.
    """
    from gpucost.cli.state.screen import ScreenLayout, print_screen
    from gpucost.cli.state.source import ClusterLocation
    from gpucost.reports.live.state_document import state_json
    from gpucost.reports.live.state_facts import StateFilter, narrowed

    where = ClusterLocation(kubeconfig, context, kubernetes_url)
    is_named = any((source, *where, at, team_labels, extra_resources))
    remote = context_of(ctx).watching(is_named=is_named, dump_option="--from")
    if remote is not None:
        found = remote.state()
    else:
        source = source or ("" if any(where) else context_of(ctx).dump())
        with undisturbed():
            found = _facts_of(
                loaded_from(source, owner_keys(team_labels), where, at), team_labels, extra_resources
            )
    wanted = StateFilter(namespace, team, queue, job)
    if wanted:
        found = narrowed(found, wanted)
    if format_ == "json":
        write(state_json(found), None)
        return
    console, columns = stdout(), _columns()
    if columns:
        console.width = columns
    look = ScreenLayout(everything, not (columns or console.is_terminal), explain, wanted.words, bool(source))
    with console.capture() as captured:
        print_screen(found, console, look)
    # Not by the console: it ends the process with 1 when the reader has closed the pipe.
    sys.stdout.write(captured.get())
    sys.stdout.flush()


def _facts_of(loaded: DumpContent, team_labels: str, extra_resources: str) -> StateFacts:
    """Of a cluster or a dump: all facts."""
    from gpucost.cluster.views.overview import ClusterOverview
    from gpucost.kube.parse.collections import collections
    from gpucost.reports.live.state_facts import facts

    return facts(
        ClusterOverview(loaded.state, catalog_of(extra_resources), owner_keys(team_labels)),
        expected=[each.name for each in collections()],
        is_dated=loaded.is_dated,
        left_out=loaded.left_out,
    )


def _columns() -> int | None:
    """The width that the environment sets."""
    asked = os.environ.get("COLUMNS", "")
    return int(asked) if asked.isdecimal() and int(asked) else None


def loaded_from(source: str, keys: OwnerKeys, where: ClusterLocation, at: str) -> DumpContent:
    """As ``load``; objects of a dump that are not read are reported on stderr."""
    from gpucost.cli.state.source import load

    loaded = load(source, keys, where, at, now_ms())
    if loaded.left_out:
        counts = ", ".join(f"{count:,} {what}" for what, count in loaded.left_out.items())
        complain(f"not read: {counts}")
    return loaded


def owner_keys(team_labels: str) -> OwnerKeys:
    """The labels of ``--team-labels``, else the usual ones."""
    from gpucost.cluster.objects.metadata import OwnerKeys
    from gpucost.settings.types import split_names

    given = split_names(team_labels)
    for name in given:
        if len(name.split()) > 1:
            raise InputError("--team-labels", name, "names without blanks, with commas between them")
    return OwnerKeys(team=given) if given else OwnerKeys()


def catalog_of(extra_resources: str) -> ResourceCatalog:
    """The GPU resources, with those of ``--extra-resources``."""
    from gpucost.domain.gpu import ResourceCatalog
    from gpucost.settings.types import split_names

    return ResourceCatalog.with_whole(split_names(extra_resources))


@contextmanager
def undisturbed() -> Iterator[None]:
    """Without garbage collection: with millions of objects that all stay, it takes half of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _dump(
    found: Iterable[tuple[ApiCollection, CollectionList[str] | None]], more: Iterable[str], at_ms: int
) -> Iterator[str]:
    """The text of a dump, a collection at a time; ``more`` are lines of objects of no collection."""
    from gpucost.cli.state.source import origin
    from gpucost.kube.dumps.dump import closing as ending
    from gpucost.kube.dumps.dump import opening
    from gpucost.kube.watch.api_calls import CollectionList

    seen: list[tuple[ApiCollection, CollectionList[Any] | None]] = []
    between = opening()
    for collection, each in found:
        seen.append((collection, each and CollectionList(each.version, ())))
        for line in each.items if each else ():
            yield between + line
            between = ",\n"
    for line in more:
        yield between + line
        between = ",\n"
    if between == opening():
        yield between
    yield ending(origin(seen, at_ms))


@contextmanager
def _opened(to: Path | None, at_ms: int) -> Iterator[Callable[[str], object]]:
    """A function that writes text to stdout, or to a file beside ``to`` that takes its place at the end."""
    if to is None:
        yield lambda text: sys.stdout.buffer.write(text.encode("ascii"))
        sys.stdout.buffer.flush()
        return
    try:
        with _placed(to) as file, _packed(file, to.suffix == ".gz", at_ms) as packed:
            yield lambda text: packed.write(text.encode("ascii"))
    except (OSError, RuntimeError) as error:  # RuntimeError: a link that leads to itself
        reason = getattr(error, "strerror", None) or "a link to itself"
        raise InputError("--to", str(to), f"a file that can be written ({reason})") from None


@contextmanager
def _placed(to: Path) -> Iterator[IO[bytes]]:
    """A temporary file, with its mode of 0600, that takes its place when no error occurred. A device or a
    pipe is written to, not replaced."""
    if to.exists() and not to.is_file() and not to.is_dir():
        with to.open("wb") as file:
            yield file
        return
    place = to.resolve()
    with NamedTemporaryFile(dir=place.parent, prefix=f".{place.name}.", delete=False) as temporary:
        try:
            yield temporary
            temporary.flush()
            os.fsync(temporary.fileno())
            Path(temporary.name).replace(place)
        except BaseException:
            Path(temporary.name).unlink(missing_ok=True)
            raise


@contextmanager
def _packed(file: IO[bytes], is_gzip: bool, at_ms: int) -> Iterator[IO[bytes]]:
    if not is_gzip:
        yield file
        return
    with gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=at_ms // 1000, compresslevel=6) as packed:
        yield packed  # type: ignore[misc]
