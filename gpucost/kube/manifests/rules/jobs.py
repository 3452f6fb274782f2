"""Jobs and CronJobs (pkg/apis/batch/validation; defaults of pkg/apis/batch/v1), and schedules of CronJobs
(robfig/cron v3.0.1, parser.go: ParseStandard)."""

from __future__ import annotations

import re
from zoneinfo import available_timezones

from gpucost.domain.errors import ErrorRemark, shorten
from gpucost.kube.manifests.rules.names import (
    BOTH,
    LABEL_RULE,
    LONGEST_LABEL,
    QUALIFIED_RULE,
    SET,
    check_name,
    check_one_of,
    check_range,
    check_selector,
    is_dns_label,
    is_domain_path,
    is_label_value,
    is_qualified,
    is_subdomain,
    selects,
)
from gpucost.kube.manifests.rules.pods import check_template
from gpucost.kube.parse.fields import ObjectPart

_FIELDS = (
    (0, 59, ()),
    (0, 23, ()),
    (1, 31, ()),
    (1, 12, ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")),
    (0, 6, ("sun", "mon", "tue", "wed", "thu", "fri", "sat")),
)
_NAMED = frozenset(("@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly"))
_PART = re.compile(r"(?P<any>[*?])|(?P<first>[A-Za-z0-9]+)(?:-(?P<last>[A-Za-z0-9]+))?")
_NUMBER = re.compile("[0-9]{1,9}")
_EVERY = re.compile(r"@every [-+]?([0-9]*\.?[0-9]+(ns|us|µs|μs|ms|s|m|h))+|@every [-+]?0")
_LONGEST = 1024


def is_schedule(text: str) -> bool:
    """Five fields: minute, hour, day of month, month, day of week. Time zones have a field of their own."""
    if "TZ" in text or len(text) > _LONGEST:
        return False
    if text.startswith("@"):
        return text in _NAMED or _EVERY.fullmatch(text) is not None
    fields = text.split()
    return len(fields) == len(_FIELDS) and all(
        _is_field(each, *bounds) for each, bounds in zip(fields, _FIELDS, strict=True)
    )


def _is_field(text: str, least: int, most: int, names: tuple[str, ...]) -> bool:
    return (
        all(_is_range(each, least, most, names) for each in text.split(",") if each) and text.strip(",") != ""
    )


def _is_range(text: str, least: int, most: int, names: tuple[str, ...]) -> bool:
    span, slash, step = text.partition("/")
    if slash and (not _NUMBER.fullmatch(step) or int(step) == 0):
        return False
    found = _PART.fullmatch(span)
    if found is None:
        return False
    if found["any"]:
        return True
    first = _number(found["first"], least, names)
    last = first if found["last"] is None else _number(found["last"], least, names)
    return first is not None and last is not None and least <= first <= last <= most


def _number(text: str, least: int, names: tuple[str, ...]) -> int | None:
    if text.lower() in names:
        return names.index(text.lower()) + least
    return int(text) if _NUMBER.fullmatch(text) else None


_COUNTS = (
    *("parallelism", "completions", "activeDeadlineSeconds", "backoffLimit", "ttlSecondsAfterFinished"),
    *("backoffLimitPerIndex", "maxFailedIndexes"),
)
_INDEXED = "Indexed"
_MOST_PARALLEL = _MOST_FAILED = _MANY = 100_000
_MOST_OF_MANY = 10_000
_MOST_RULES, _MOST_CODES = 20, 255
_LONGEST_CRON = 52
_NAME, _UID = "job-name", "controller-uid"
_OWN = (_NAME, _UID, f"batch.kubernetes.io/{_NAME}", f"batch.kubernetes.io/{_UID}")
_INTERVAL = re.compile(r"\+?([0-9]{1,10})(?:-\+?([0-9]{1,10}))?")


def check_job(root: ObjectPart, name: str) -> None:
    """``name`` is the name that it will have."""
    spec = root.part("spec")
    has_own = spec.flag("manualSelector")
    is_alone = "completions" not in spec and "parallelism" not in spec
    check_job_spec(spec, 1 if is_alone else None)
    template = spec.part("template").part("metadata")
    labels = template.labels("labels")
    if has_own:
        if "selector" not in spec:
            spec.flaw("selector", None, "a selector, where manualSelector is true")
        check_selector(spec, "selector")
        if not selects(spec.part("selector"), labels):
            template.flaw("labels", labels, "labels that the selector matches")
    else:
        _check_generated(spec, labels, name, root.part("metadata").text("uid"))
    if is_subdomain(name):
        _check_name(root, name, 1 if is_alone else spec.whole("completions") or 0)


def _check_name(root: ObjectPart, name: str, completions: int) -> None:
    """The name must be usable as a label of its pods, and as a part of their host names."""
    metadata, host = root.part("metadata"), f"{name}-{completions - 1}"
    if not is_label_value(name):
        metadata.flaw("name", name, f"at most {LONGEST_LABEL} characters: pods have it as a label")
    elif root.part("spec").text("completionMode") == _INDEXED and completions and not is_dns_label(host):
        metadata.flaw("name", name, f"a name of which pods can be called {shorten(host, 80)}: {LABEL_RULE}")


def _check_generated(spec: ObjectPart, labels: dict[str, str], name: str, uid: str) -> None:
    """Labels and selector that the API server generates, where the manifest has some of them. An object that
    comes from the API server has them, with its own uid."""
    made = {key: uid if key.endswith(_UID) else name for key in _OWN}
    for key, value in made.items():
        if key in labels and (labels[key] != value or not value):
            metadata = spec.part("template").part("metadata")
            metadata.flaw(f"labels[{key}]", labels[key], "none: the API server sets it")
    check_selector(spec, "selector")
    if not selects(spec.part("selector"), {key: value for key, value in made.items() if value}):
        spec.flaw("selector", SET, "none: it is generated, unless manualSelector is true")


def check_job_spec(spec: ObjectPart, completions: int | None = None) -> None:
    """``completions`` is the default for a job that has neither completions nor a parallelism."""
    for key in _COUNTS:
        check_range(spec, key, 0)
    if completions is None:
        completions = spec.whole("completions")
    check_one_of(spec, "completionMode", (_INDEXED, "NonIndexed"))
    if "managedBy" in spec and (
        not is_domain_path(spec.text("managedBy")) or len(spec.text("managedBy")) > LONGEST_LABEL
    ):
        spec.flaw(
            "managedBy", spec.text("managedBy"), "a domain-prefixed path such as acme.io/foo, at most 63"
        )
    if spec.text("completionMode") == _INDEXED:
        _check_indexed(spec, completions)
    else:
        for key in ("backoffLimitPerIndex", "maxFailedIndexes", "successPolicy"):
            if key in spec:
                spec.flaw(key, spec.raw(key), "none: it requires indexed completion mode")
    if "maxFailedIndexes" in spec and "backoffLimitPerIndex" not in spec:
        spec.flaw("backoffLimitPerIndex", None, "a number, when maxFailedIndexes is specified")
    replacement = ("Failed",) if "podFailurePolicy" in spec else ("Failed", "TerminatingOrFailed")
    check_one_of(spec, "podReplacementPolicy", replacement)
    for index, rule in enumerate(_rules(spec, "podFailurePolicy")):
        _check_failure_rule(rule, spec, index)
    template = spec.part("template")
    check_template(template)
    _check_restarts(template.part("spec"), "podFailurePolicy" in spec)


def _check_restarts(pods: ObjectPart, has_policy: bool) -> None:
    found = pods.text("restartPolicy")
    if found in ("", "Always"):
        pods.flaw("restartPolicy", found or None, 'valid values: "OnFailure", "Never"')
    elif has_policy and found == "OnFailure":
        pods.flaw("restartPolicy", found, '"Never", when podFailurePolicy is specified')


def _check_indexed(spec: ObjectPart, completions: int | None) -> None:
    if completions is None:
        spec.flaw("completions", None, f"a number, when completion mode is {_INDEXED}")
        return
    check_range(spec, "parallelism", -(2**31), _MOST_PARALLEL)
    check_range(spec, "maxFailedIndexes", -(2**31), min(_MOST_FAILED, completions))
    if completions > _MANY and "backoffLimitPerIndex" in spec:
        if "maxFailedIndexes" not in spec:
            spec.flaw("maxFailedIndexes", None, f"a number, when completions is above {_MANY}")
        for key in ("parallelism", "maxFailedIndexes"):
            check_range(spec, key, -(2**31), _MOST_OF_MANY)
    if "successPolicy" in spec:
        rules = _rules(spec, "successPolicy")
        if not rules:
            spec.part("successPolicy").flaw("rules", None, "at least one rule")
        for rule in rules:
            _check_success_rule(rule, completions)


def _rules(spec: ObjectPart, policy: str) -> list[ObjectPart]:
    rules = spec.part(policy).parts("rules")
    if len(rules) > _MOST_RULES:
        spec.part(policy).flaw("rules", ErrorRemark(f"{len(rules):,} rules"), f"at most {_MOST_RULES}")
    return rules


def _check_success_rule(rule: ObjectPart, completions: int) -> None:
    indexes, count = rule.text("succeededIndexes"), rule.whole("succeededCount")
    if "succeededIndexes" not in rule and count is None:
        rule.flaw("", None, "at least one of succeededCount and succeededIndexes")
    most = completions
    if "succeededIndexes" in rule:
        found = _indexes(indexes, completions)
        if found is None or len(indexes) > 64 << 10:
            rule.flaw("succeededIndexes", indexes, f"growing numbers and ranges below {completions}: 0,2-4")
        most = min(most, found or 0)
    check_range(rule, "succeededCount", 0, max(most, 0))


def _indexes(text: str, completions: int) -> int | None:
    """The number of indexes; None if it is not a list of them."""
    total, last = 0, -1
    for each in text.split(",") if text else ():
        found = _INTERVAL.fullmatch(each)
        if found is None:
            return None
        first, end = int(found[1]), int(found[2] or found[1])
        if not last < first <= end < completions or (found[2] and first == end):
            return None
        total, last = total + end - first + 1, end
    return total


def _check_failure_rule(rule: ObjectPart, spec: ObjectPart, index: int) -> None:
    check_one_of(rule, "action", ("Count", "FailIndex", "FailJob", "Ignore"), is_required=True)
    if rule.text("action") == "FailIndex" and "backoffLimitPerIndex" not in spec:
        rule.flaw("action", "FailIndex", "another action, unless backoffLimitPerIndex is set")
    conditions = rule.parts("onPodConditions")
    if ("onExitCodes" in rule) == bool(conditions):
        spec.part("podFailurePolicy").flaw(
            f"rules[{index}]", BOTH if conditions else None, "one of onExitCodes and onPodConditions"
        )
    if "onExitCodes" in rule:
        _check_codes(rule.part("onExitCodes"), spec)
    if len(conditions) > _MOST_RULES:
        rule.flaw("onPodConditions", ErrorRemark(f"{len(conditions):,} patterns"), f"at most {_MOST_RULES}")
    for each in conditions:
        check_name(each, "type", is_qualified, QUALIFIED_RULE, is_required=True)
        check_one_of(each, "status", ("", "False", "True", "Unknown"))


def _check_codes(codes: ObjectPart, spec: ObjectPart) -> None:
    pods = spec.part("template").part("spec")
    names = {each.text("name") for key in ("containers", "initContainers") for each in pods.parts(key)}
    check_one_of(codes, "operator", ("In", "NotIn"), is_required=True)
    if "containerName" in codes and codes.text("containerName") not in names:
        codes.flaw(
            "containerName", codes.text("containerName"), "the name of a container in the pod template"
        )
    values = codes.raw("values") or []
    if not 1 <= len(values) <= _MOST_CODES:
        codes.flaw("values", ErrorRemark(f"{len(values):,} values"), f"1 to {_MOST_CODES}")
    if sorted(set(values)) != values:
        codes.flaw("values", values, "values in order, each once")
    if codes.text("operator") == "In" and 0 in values:
        codes.flaw("values", values, "values other than 0, for the In operator")


def check_cron_job(root: ObjectPart, name: str) -> None:
    """``name`` is the name that it will have."""
    spec = root.part("spec")
    if len(name) > _LONGEST_CRON:
        root.part("metadata").flaw("name", name, f"no more than {_LONGEST_CRON} characters")
    schedule = spec.text("schedule")
    if not is_schedule(schedule):
        spec.flaw("schedule", schedule or None, "five fields of cron, or one of @hourly, @daily, @weekly, …")
    zone = spec.text("timeZone")
    if "timeZone" in spec and zone not in available_timezones():
        spec.flaw("timeZone", zone or None, "a time zone of https://www.iana.org/time-zones")
    check_one_of(spec, "concurrencyPolicy", ("", "Allow", "Forbid", "Replace"))
    for key in ("startingDeadlineSeconds", "successfulJobsHistoryLimit", "failedJobsHistoryLimit"):
        check_range(spec, key, 0)
    inner = spec.part("jobTemplate").part("spec")
    if "selector" in inner:
        inner.flaw("selector", SET, "none: it is generated")
    if inner.flag("manualSelector"):
        inner.flaw("manualSelector", True, "false")
    check_job_spec(inner)
