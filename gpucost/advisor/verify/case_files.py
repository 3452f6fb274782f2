"""Files of recorded cases (docs/advisor-cases.md): JSON, every field checked, unknown ones refused."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any, NamedTuple

from gpucost.advisor.model.cycle_results import PodSetFlavors
from gpucost.advisor.verify.case_objects import CaseCluster, flavor_name
from gpucost.advisor.verify.case_schema import (
    CYCLE,
    HEAP,
    LEVELS,
    PARKED,
    REASONS_GATE,
    SCHEMA_VERSION,
    SEARCH,
    VERSION,
    ExpectedDecision,
    GivenFlavors,
    JsonFields,
    RecordingOrigin,
    SchedulerCase,
    fields,
    items,
    text,
)
from gpucost.cluster.objects.scheduler_config import STRATEGIES, KueueConfig
from gpucost.domain.errors import ErrorRemark, InputError
from gpucost.domain.time import parse_instant

MOST_BYTES = 256 << 20
"""Of one file, once it is inflated."""
_DESCRIPTION = ("about", "conventions", "outcomes", "counts")
_OUTCOMES = ("admitted", "pending", "preempting", "preempted", "keeps-running", "being-evicted")
_CASE_FILE = "a file of recorded cases: docs/advisor-cases.md"


class CaseFile(NamedTuple):
    """The cases of one file. ``unread`` are fields of the file itself, beside its cases, that
    have no meaning here. ``origin`` is None where it does not say whose decisions they are."""

    cases: tuple[SchedulerCase, ...]
    unread: tuple[str, ...] = ()
    origin: RecordingOrigin | None = None


def read_cases(content: bytes, name: str) -> CaseFile:
    """The cases in ``content`` (inflated). ``name`` is for errors.

    Raises InputError for content that is no such file, and for the first field that is wrong, by its path.
    """
    return cases_of(decoded(content, name), name)


def cases_of(found: object, name: str) -> CaseFile:
    """Likewise, of what was decoded before."""
    whole = JsonFields(found, name)
    version = whole.whole("schemaVersion", SCHEMA_VERSION)
    if version != SCHEMA_VERSION:
        raise InputError(whole.at("schemaVersion"), version, str(SCHEMA_VERSION))
    for key in _DESCRIPTION:
        whole.raw(key)
    origin = _origin(whole)
    found = whole.raw("cases")
    if found is None:
        raise InputError(whole.at("cases"), ErrorRemark("missing"), _CASE_FILE)
    cases = tuple(
        _case(each, whole.at(f"cases[{place}]")) for place, each in enumerate(items(found, whole.at("cases")))
    )
    return CaseFile(cases, tuple(whole.unread()), origin)


def _origin(whole: JsonFields) -> RecordingOrigin | None:
    if whole.raw("recorded") is None:
        return None
    with fields(whole.raw("recorded"), whole.at("recorded")) as part:
        gates = part.mapping("featureGates", _switch)
        fair_sharing, strategies = kind_of(part)
        is_read, version = part.flag("configurationRead"), part.text("kueueVersion", "")
        config = KueueConfig(version, fair_sharing, strategies, gates, is_read=is_read)
        times = {key: part.text(key, "") for key in ("from", "to")}
        from_ms, to_ms = (parse_instant(each, part.at(key)) if each else 0 for key, each in times.items())
    return RecordingOrigin(config, from_ms, to_ms)


def _switch(found: object, path: str) -> bool:
    if not isinstance(found, bool):
        raise InputError(path, found, "true or false")
    return found


def decoded(content: bytes, name: str) -> Any:
    """The JSON of a file. Raises InputError for content that is none."""
    if len(content) > MOST_BYTES:
        raise InputError(name, ErrorRemark("too large"), f"at most {MOST_BYTES >> 20} MiB")
    try:
        return json.loads(content.decode("utf-8"), object_pairs_hook=_once, parse_constant=_no_constant)
    except RecursionError:
        raise InputError(name, ErrorRemark("nested too deeply"), _CASE_FILE) from None
    except ValueError as error:  # JSONDecodeError and UnicodeDecodeError among them
        raise InputError(name, ErrorRemark(f"no JSON that can be read ({error})"), _CASE_FILE) from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        times = Counter(key for key, _ in pairs)
        twice = next(key for key, count in times.items() if count > 1)
        raise ValueError(f"field {twice[:80]!r} twice in one object")
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")


def _case(found: object, path: str) -> SchedulerCase:
    with fields(found, path) as part:
        id_ = part.text("id")
        part.path = f"{path} ({id_[:80]})"
        level = part.one_of("level", LEVELS, CYCLE)
        cluster = CaseCluster(part)
        config = _config(part)
        given, searched = _given(part, level, cluster)
        return SchedulerCase(
            id_,
            level,
            cluster.state(config),
            config,
            cluster.keys,
            _expectations(part, cluster),
            part.text("title", ""),
            part.text("source", ""),
            part.text("teaches", ""),
            part.texts("tags"),
            _order(part, cluster),
            given,
            searched,
        )


def _config(case: JsonFields) -> KueueConfig:
    with fields(case.raw("config") or {}, case.at("config")) as part:
        fair_sharing, strategies = kind_of(part)
    return KueueConfig(VERSION, fair_sharing, strategies, {REASONS_GATE: True}, is_read=True)


def kind_of(part: JsonFields) -> tuple[bool, tuple[str, ...]]:
    """Of preemption: whether it is that of fair sharing, and its strategies."""
    strategies = part.texts("preemptionStrategies") or STRATEGIES
    if strategies not in (STRATEGIES, *((each,) for each in STRATEGIES)):
        allowed = f"null, or one of {' and '.join(STRATEGIES)}, or both in this order"
        raise InputError(part.at("preemptionStrategies"), list(strategies), allowed)
    return part.flag("fairSharing"), strategies


def _given(case: JsonFields, level: str, cluster: CaseCluster) -> tuple[GivenFlavors, str]:
    """The flavors that a search for victims is given, and the uid of the workload that it is for."""
    by_set = case.mapping("givenFlavorByPodSet", _flavors)
    of_all = case.mapping("givenFlavor", flavor_name)
    fits = case.raw("givenFlavorFits")
    names = case.texts("givenFlavorFits") if not isinstance(fits, dict) else tuple(fits)
    if level == CYCLE:
        if by_set or of_all or names:
            raise InputError(case.at("givenFlavor"), ErrorRemark("given"), f"nothing for level {CYCLE}")
        return GivenFlavors(), ""
    if bool(by_set) == bool(of_all):
        allowed = f"for level {SEARCH}: either givenFlavor or givenFlavorByPodSet"
        raise InputError(case.at("givenFlavor"), ErrorRemark("both" if by_set else "missing"), allowed)
    pending = [each for each in cluster.workloads.values() if not each.has_quota]
    if len(pending) != 1:
        remark = ErrorRemark(f"{len(pending)} that are pending")
        raise InputError(case.at("workloads"), remark, f"one for level {SEARCH}")
    if not cluster.is_served(pending[0]):
        remark = ErrorRemark("a queue that admits nobody")
        raise InputError(case.at("workloads"), remark, f"an active one for level {SEARCH}")
    sets = {each.name: each.template.requests for each in pending[0].pod_sets}
    for name in by_set:
        if name not in sets:
            raise InputError(
                case.at(f"givenFlavorByPodSet.{name[:80]}"), ErrorRemark("unknown"), ", ".join(sets)
            )
    own = by_set or {
        name: {key: flavor for key, flavor in of_all.items() if key in asked or key == "pods"}
        for name, asked in sets.items()
    }
    return GivenFlavors(own, frozenset(names)), pending[0].meta.uid


def _expectations(case: JsonFields, cluster: CaseCluster) -> dict[str, ExpectedDecision]:
    known = set(cluster.keys.values())

    def workload(found: object, path: str) -> str:
        return _known(text(found, path), known, path)

    def one(found: object, path: str) -> ExpectedDecision:
        if found is None:
            return ExpectedDecision()
        with fields(found, path) as part:
            return _expected(part, workload)

    read = case.mapping("expected", one)
    for key in read:
        _known(key, known, case.at("expected"))
    return read


def _expected(part: JsonFields, workload: Any) -> ExpectedDecision:
    mode, level, nominated = None, None, None
    if part.raw("nominated") is not None:
        with fields(part.raw("nominated"), part.at("nominated")) as inner:
            mode, level = inner.text_or_none("mode"), inner.whole_or_none("borrowingLevel", 0)
            nominated = _assigned(inner)
    preempts, at = part.raw("preempts"), part.at("preempts")
    by = part.raw("preemptedBy")
    return ExpectedDecision(
        _one_or_none(part, "outcome", _OUTCOMES),
        part.text_or_none("clusterQueue"),
        None if part.raw("flavors") is None else part.mapping("flavors", flavor_name),
        _assigned(part),
        part.flag_or_none("borrowsFromCohort"),
        part.whole_or_none("borrowingLevel", 0),
        mode,
        nominated,
        level,
        None if preempts is None else frozenset(workload(each, at) for each in items(preempts, at)),
        None if by is None else workload(by, part.at("preemptedBy")),
        part.text_or_none("preemptedReason"),
        part.text_or_none("pendingClass"),
        _one_or_none(part, "requeuedTo", (HEAP, PARKED)),
        part.text_or_none("quotaReservedReason"),
        part.text_or_none("messageContains") or None,  # every message contains nothing
    )


def _one_or_none(part: JsonFields, key: str, allowed: tuple[str, ...]) -> str | None:
    return None if part.raw(key) is None else part.one_of(key, allowed)


def _assigned(part: JsonFields) -> tuple[PodSetFlavors, ...] | None:
    if part.raw("podSets") is None:
        return None
    return tuple(
        PodSetFlavors(each.name("name"), each.whole("count", None, 0), each.mapping("flavors", flavor_name))
        for each in part.objects("podSets")
    )


def _flavors(found: object, path: str) -> dict[str, str]:
    return JsonFields({"flavors": found}, path).mapping("flavors", flavor_name)


def _order(case: JsonFields, cluster: CaseCluster) -> frozenset[tuple[str, ...]] | None:
    found, path = case.raw("processingOrder"), case.at("processingOrder")
    if found is None:
        return None
    known = set(cluster.keys.values())
    return frozenset(
        tuple(_known(text(key, path), known, path) for key in items(each, path))
        for each in items(found, path)
    )


def _known(key: str, known: set[str], path: str) -> str:
    if key not in known:
        raise InputError(path, key, "namespace/name of a workload of the case")
    return key
