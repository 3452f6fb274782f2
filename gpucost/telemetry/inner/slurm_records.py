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

**Notation**, as Slurm writes it. Lists of nodes: ``gpu-[01-03,7],login1`` -> gpu-01, gpu-02, gpu-03, gpu-7,
login1.

As Slurm writes them (SchedMD/slurm, src/common/hostlist.c): names apart by commas; in brackets numbers and
ranges, as wide as the lower end of a range is written; several brackets in a name are all combinations, of
which the last one changes fastest.

States: SchedMD/slurm, src/common/slurm_protocol_defs.c (job_state_string). Trackable resources: doc/html/
tres.shtml; ``gres/gpu`` is the number of all GPUs, ``gres/gpu:h100`` that of one type, and both may stand
side by side.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product

from gpucost.domain.errors import ErrorRemark, InputError
from gpucost.domain.time import parse_instant
from gpucost.telemetry.inner.inner_jobs import InnerJob, JobRecords, checked_job
from gpucost.telemetry.inner.record_folder import JsonPlace

MOST_NODES = 65_536
NO_NODES = ("", "None assigned", "(null)", "None", "N/A")
"""What Slurm writes where a job had no nodes."""
_LIST = re.compile(r"(?:[^][,]+|\[[^][]*\])+")
_PART = re.compile(r"([^][]+)|\[([^][]*)\]")
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?", re.ASCII)
_PLAIN = re.compile(r"[A-Za-z0-9._-]+", re.ASCII)
_ALLOWED = "names of nodes, such as gpu-[01-03,7],login1"
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


def expand_hostlist(text: str, field: str) -> tuple[str, ...]:
    """Its nodes in order; empty where Slurm says that there are none. Raises InputError about ``field``."""
    if text.strip() in NO_NODES:
        return ()
    names: list[str] = []
    for entry in _entries(text, field):
        for name in _expanded(entry, text, field):
            names.append(name)
            if len(names) > MOST_NODES:
                raise InputError(field, text, f"at most {MOST_NODES:,} nodes")
    return tuple(names)


def _entries(text: str, field: str) -> Iterator[str]:
    at = 0
    while True:
        match = _LIST.match(text, at)
        if match is None:
            raise InputError(field, text, _ALLOWED)
        yield match.group()
        at = match.end()
        if at == len(text):
            return
        if text[at] != ",":
            raise InputError(field, text, _ALLOWED)
        at += 1


def _expanded(entry: str, text: str, field: str) -> Iterator[str]:
    parts: list[list[str]] = []
    combinations = 1
    for plain, ranges in _PART.findall(entry):
        if plain and not _PLAIN.fullmatch(plain):
            raise InputError(field, text, _ALLOWED)
        parts.append([plain] if plain else list(_numbers(ranges, text, field)))
        combinations *= len(parts[-1])
        if combinations > MOST_NODES:
            raise InputError(field, text, f"at most {MOST_NODES:,} nodes")
    for combination in product(*parts):
        yield "".join(combination)


def _numbers(ranges: str, text: str, field: str) -> Iterator[str]:
    count = 0
    for each in ranges.split(","):
        match = _RANGE.fullmatch(each)
        if match is None:
            raise InputError(field, text, _ALLOWED)
        low, high = match[1], match[2] or match[1]
        if int(high) < int(low) or int(high) - int(low) >= MOST_NODES:
            raise InputError(field, text, f"ranges that rise, of at most {MOST_NODES:,} nodes")
        count += int(high) - int(low) + 1
        if count > MOST_NODES:
            raise InputError(field, text, f"at most {MOST_NODES:,} nodes")
        for number in range(int(low), int(high) + 1):
            yield str(number).zfill(len(low))


OVER = frozenset(
    {
        "COMPLETED",
        "FAILED",
        "CANCELLED",
        "TIMEOUT",
        "NODE_FAIL",
        "PREEMPTED",
        "BOOT_FAIL",
        "DEADLINE",
        "OUT_OF_MEMORY",
        "REVOKED",
        "SPECIAL_EXIT",
        "LAUNCH_FAILED",
        "RECONFIG_FAIL",
        "REQUEUED",
        "REQUEUE_FED",
        "REQUEUE_HOLD",
        "STAGE_OUT",
    }
)
"""The job does not run any more. CANCELLED may be followed by who did it."""
RUNS = frozenset(
    {
        "RUNNING",
        "SUSPENDED",
        "COMPLETING",
        "CONFIGURING",
        "RESIZING",
        "SIGNALING",
        "STOPPED",
    }
)
"""The job has its GPUs. One that is suspended keeps them (doc/html/gres.shtml)."""
WAITS = frozenset({"PENDING", "RESV_DEL_HOLD", "EXPEDITING"})
STATES = f"a state of a Slurm job, such as {', '.join(sorted(OVER | RUNS | WAITS))}"
_GPU = "gres/gpu"


def gpus_of(counts: Iterable[tuple[str, int]]) -> int:
    """Of pairs of a resource, as ``gres/gpu:h100``, and its count: the GPUs, by their total where it is
    there."""
    total = None
    typed = 0
    for name, count in counts:
        if name == _GPU:
            total = count
        elif name.startswith(f"{_GPU}:"):
            typed += count
    return typed if total is None else total


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
