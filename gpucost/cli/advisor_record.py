"""Where ``gpucost advisor record`` has its states from: two dumps, or a cluster that it looks at again and
again."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

from gpucost.advisor.verify.aliases import Aliases, Names
from gpucost.advisor.verify.record import NO_DECISION, document, record
from gpucost.advisor.verify.write import Document
from gpucost.cli.exits import complain
from gpucost.cli.state import loaded_from
from gpucost.cli.state_source import Place
from gpucost.cluster.ownership import OwnerKeys
from gpucost.cluster.scheduling import KueueConfig
from gpucost.cluster.state import ClusterState
from gpucost.domain.errors import InputError, Remark, SourceError

_KNOWN = "--fair-sharing or --no-fair-sharing, since Kueue's configuration could not be read"


def from_dumps(before: str, after: str, fair_sharing: bool | None, *, anonymous: bool) -> Document:
    """Raises InputError where what lies between two dumps is not one cycle, saying why."""
    nowhere = Place(None, "", "")
    first, second = (loaded_from(each, OwnerKeys(), nowhere, "") for each in (before, after))
    found = record(
        first.state, second.state, _config(first.state, fair_sharing), _names(anonymous), "rec-001"
    )
    if found.case is None:
        allowed = "two dumps with the decisions of one scheduling cycle between them"
        raise InputError("--after", Remark("; ".join(found.why)), allowed)
    for each in found.why:
        complain(f"left out: {each}")
    return document([found.case])


class Watch(NamedTuple):
    """For how long and how often a cluster is looked at, in seconds, and after how many cases that ends."""

    seconds: int
    every: float
    most: int


def watched(where: Place, watch: Watch, fair_sharing: bool | None, *, anonymous: bool) -> Document:
    """Every cycle that can be told apart. Raises SourceError where none was seen."""
    names, cases, doubts = _names(anonymous), list[Document](), 0
    for before, after in pairwise(_states(where, watch)):
        found = record(before, after, _config(before, fair_sharing), names, f"rec-{len(cases) + 1:03}")
        if found.case is not None:
            cases.append(found.case)
            if len(cases) == watch.most:
                break
        elif found.why != (NO_DECISION,):
            doubts += 1
            complain(f"not recorded: {'; '.join(found.why)}")
    if not cases:
        raise SourceError(
            f"no decision of one cycle in {watch.seconds} s ({doubts} that could not be told apart)"
        )
    return document(cases)


def _states(where: Place, watch: Watch) -> Iterator[ClusterState]:
    """A first one, and then one after the other."""
    end = time.monotonic() + watch.seconds
    while True:
        began = time.monotonic()
        yield loaded_from("", OwnerKeys(), where, "").state
        pause = watch.every - (time.monotonic() - began)
        if time.monotonic() + max(pause, 0.0) > end:
            return
        time.sleep(max(pause, 0.0))


def _config(state: ClusterState, fair_sharing: bool | None) -> KueueConfig:
    """As the cluster has it, with what the option says."""
    config = state.schedulers.kueue
    if fair_sharing is not None:
        return replace(config, fair_sharing=fair_sharing)
    if not config.is_read:
        raise InputError("--fair-sharing", Remark("missing"), _KNOWN)
    return config


def _names(anonymous: bool) -> Names:
    return Aliases() if anonymous else Names()
