"""Records of Slurm's jobs: the output of ``sacct --parsable2``, and the answers of slurmrestd.

**sacct** writes a header of names, then a line for each job, with | between. Needed are JobID, User, Account,
State, Start, End, NodeList and AllocTRES. Lines of steps (``12.batch``, ``12.0``) are not read. Times are
seconds since 1970 (``SLURM_TIME_FORMAT=%s``) or RFC 3339 with a zone: sacct's own format is local time of a
host that nothing names, and is refused. So are columns of free text (JobName, Comment, WorkDir): whoever
submits a job writes them, line ends and separators too, and could write a record of somebody else's job. JSON
has names without that danger.

Rules: SchedMD/slurm, doc/man/man1/sacct.1 (fields); src/sacct/print.c (``CANCELLED by 1000``; ``123_4`` is a
task of an array, ``123_[5-9]`` are tasks that wait, ``123+1`` is a part of a heterogeneous job);
src/common/parse_time.c (``Unknown`` and ``None`` for no time); as_mysql_job.c (``None assigned``).

**slurmrestd** answers ``GET /slurmdb/v0.0.4x/jobs``, and ``sacct --json`` writes the same. Read are
``jobs[]`` with ``job_id``, ``array``, ``het``, ``user``, ``account``, ``name``, ``nodes``, ``state.current``,
``time.start``, ``time.end`` (seconds since 1970, 0 for none) and ``tres.allocated``.

Rules: SchedMD/slurm, src/plugins/data_parser/v0.0.39 to v0.0.46/parsers.c (JOB; UINT32_NO_VAL: a number that
may be unset is ``{set, infinite, number}``; the state is a list since v0.0.40, a text before). Some releases
of v0.0.38 said when a job could have begun in place of when it began (commit 5df85553a1): a job that is over
whose ``time.elapsed`` does not fit is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from gpucost.domain.errors import ErrorRemark, InputError
from gpucost.domain.time import parse_instant
from gpucost.telemetry.inner.inner_jobs import InnerJob, JobRecords, checked_job
from gpucost.telemetry.inner.record_folder import JsonPlace
from gpucost.telemetry.inner.slurm_notation import OVER, RUNS, STATES, WAITS, expand_hostlist, gpus_of

NEEDED = ("JobID", "User", "Account", "State", "Start", "End", "NodeList", "AllocTRES")
HARMLESS = (
    *NEEDED,
    *("JobIDRaw", "Cluster", "Partition", "QOS", "Submit", "Eligible", "Elapsed", "ElapsedRaw"),
    *("NNodes", "AllocNodes", "NCPUS", "AllocCPUS", "ReqTRES", "UID", "GID", "Group", "ExitCode"),
    *("Restarts", "Suspended", "Timelimit", "TimelimitRaw", "Priority", "AssocID"),
)
_JOB_ID = re.compile(r"[0-9]{1,12}(_[0-9]{1,12}|_\[[^]|]*\])?(\+[0-9]{1,9})?", re.ASCII)
_NO_TIME = ("", "Unknown", "None")
_SECONDS = re.compile(r"[0-9]{9,11}", re.ASCII)
_TIMES = "seconds since 1970 (SLURM_TIME_FORMAT=%s), RFC 3339 with a zone, or Unknown"
_COUNT = re.compile(r"[0-9]{1,12}", re.ASCII)


def read_sacct(text: str, file: str) -> JobRecords:
    """The jobs of one output that were given GPUs; a line that makes no sense is refused, others count."""
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not lines:
        return JobRecords()
    try:
        names = _header(lines[0][1], f"{file}: line {lines[0][0]}")
    except InputError as error:
        return JobRecords(refused=(str(error),))
    jobs: list[InnerJob] = []
    refused: list[str] = []
    for number, line in lines[1:]:
        try:
            jobs += _jobs(_cells(line, names, f"{file}: line {number}"), f"{file}: line {number}")
        except InputError as error:
            refused.append(str(error))
    return JobRecords(tuple(jobs), tuple(refused))


def _header(line: str, where: str) -> tuple[str, ...]:
    names = tuple(line.strip().split("|"))
    missing = [name for name in NEEDED if name not in names]
    if missing:
        remark = ErrorRemark(f"no column {missing[0]}")
        raise InputError(where, remark, f"sacct --parsable2 with a header and the columns {','.join(NEEDED)}")
    for name in names:
        if name not in HARMLESS:
            raise InputError(where, name, f"columns without free text: {', '.join(HARMLESS)}; JSON has names")
    return names


def _cells(line: str, names: Sequence[str], where: str) -> Mapping[str, str]:
    cells = line.strip("\r").split("|")
    if len(cells) != len(names):
        raise InputError(where, ErrorRemark(f"{len(cells)} columns"), f"{len(names)} columns, as the header")
    return dict(zip(names, cells, strict=True))


def _jobs(cells: Mapping[str, str], where: str) -> Iterator[InnerJob]:
    key = cells["JobID"].strip()
    if "." in key:
        return  # a step, whose GPUs are those of its job
    if not _JOB_ID.fullmatch(key):
        raise InputError(f"{where}: JobID", key, "a number, a task of an array (12_3), or a part (12+1)")
    state = _state(cells["State"], where)
    start = _instant(cells["Start"], f"{where}: Start")
    gpus = gpus_of(_tres(cells["AllocTRES"], f"{where}: AllocTRES"))
    if start is None or state in WAITS or not gpus:
        return
    nodes = expand_hostlist(cells["NodeList"].strip(), f"{where}: NodeList")
    if not nodes:
        raise InputError(f"{where}: NodeList", cells["NodeList"], f"the nodes of {gpus} GPUs")
    end = _instant(cells["End"], f"{where}: End")
    job = InnerJob(key, "", cells["User"], cells["Account"], gpus, nodes, start, end, state in OVER)
    yield checked_job(where, job)


def _state(text: str, where: str) -> str:
    """Its first word: ``CANCELLED by 1000``, ``OUT_OF_ME+``, where sacct had no room for all of it."""
    word = text.split(" ")[0].strip()
    known = OVER | RUNS | WAITS
    if word.endswith("+"):
        word = next((each for each in sorted(known) if each.startswith(word[:-1])), word)
    if word not in known:
        raise InputError(f"{where}: State", text, STATES)
    return word


def _instant(text: str, field: str) -> int | None:
    found = text.strip()
    if found in _NO_TIME:
        return None
    if _SECONDS.fullmatch(found):
        return int(found) * 1000
    try:
        return parse_instant(found, field)
    except InputError:
        raise InputError(field, text, _TIMES) from None


def _tres(text: str, field: str) -> Iterator[tuple[str, int]]:
    for each in text.split(",") if text.strip() else ():
        name, equals, count = each.strip().partition("=")
        if not equals:
            raise InputError(field, text, "resources and amounts, such as cpu=8,gres/gpu=2,mem=64G")
        if name.partition(":")[0] == "gres/gpu":
            if not _COUNT.fullmatch(count):
                raise InputError(field, text, "a whole number of each kind of GPU, such as gres/gpu:h100=2")
            yield name, int(count)


def read_slurmrestd(document: JsonPlace) -> JobRecords:
    """The jobs of one answer that were given GPUs; one that makes no sense is refused, the others count."""
    jobs: list[InnerJob] = []
    refused: list[str] = []
    try:
        records = document.at("jobs").items()
    except InputError as error:
        return JobRecords(refused=(str(error),))
    for record in records:
        try:
            jobs += _answered_jobs(record)
        except InputError as error:
            refused.append(str(error))
    return JobRecords(tuple(jobs), tuple(refused))


def _answered_jobs(record: JsonPlace) -> Iterator[InnerJob]:
    states = _states(record.at("state", "current"))
    start = record.at("time", "start").number()
    gpus = gpus_of(_answered_tres(record.at("tres", "allocated")))
    # While it cleans up a job has both states, of how it ended and of what it does.
    runs = bool(states & RUNS)
    if not start or not gpus or (states & WAITS and not runs):
        return
    at = record.at("nodes")
    nodes = expand_hostlist(at.text(""), at.where)
    if not nodes:
        raise InputError(at.where, at.value, f"the nodes of {gpus} GPUs")
    end = record.at("time", "end").number()
    _check_start(record, start, end)
    job = InnerJob(
        key=_key(record),
        name=record.at("name").text(""),
        user=record.at("user").text(""),
        team=record.at("account").text(""),
        gpus=gpus,
        nodes=nodes,
        start_ms=start * 1000,
        end_ms=end * 1000 if end else None,
        is_over=not runs,
    )
    yield checked_job(record.where, job)


def _check_start(record: JsonPlace, start: int, end: int | None) -> None:
    """as_mysql_jobacct_process.c: elapsed is end less start less suspended."""
    elapsed, suspended = (record.at("time", name).number() or 0 for name in ("elapsed", "suspended"))
    if end and elapsed and abs(end - start - suspended - elapsed) > 1:
        at = record.at("time", "start")
        raise InputError(
            at.where, start, f"when it began: {elapsed} s, and what it was suspended, before {end}"
        )


def _states(place: JsonPlace) -> frozenset[str]:
    found = [place.text()] if isinstance(place.value, str) else [each.text() for each in place.items()]
    states = frozenset(found)
    if not states & (OVER | RUNS | WAITS):
        raise InputError(place.where, place.value, STATES)
    return states


def _answered_tres(place: JsonPlace) -> Iterator[tuple[str, int]]:
    """``{"type": "gres", "name": "gpu:h100", "count": 4}`` as sacct writes it: gres/gpu:h100, 4."""
    for each in place.items() if place.value is not None else ():
        if each.at("type").text() == "gres":
            count = each.at("count")
            number = count.number()
            if number is None or number < 0:
                raise InputError(count.where, count.value, "a whole number of at least 0")
            yield f"gres/{each.at('name').text('')}", number


def _key(record: JsonPlace) -> str:
    """As sacct writes it: 12, 12_3 of an array, 12+1 of a heterogeneous job."""
    number = record.at("job_id").number()
    if number is None:
        raise InputError(f"{record.where}.job_id", None, "a whole number")
    array, task = record.at("array", "job_id").number(), record.at("array", "task_id").number()
    if array and task is not None:
        return f"{array}_{task}"
    het, offset = record.at("het", "job_id").number(), record.at("het", "job_offset").number()
    return f"{het}+{offset}" if het and offset is not None else str(number)
