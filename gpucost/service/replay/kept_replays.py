"""Replays that are kept for others to look at: a folder with a report for each month and name.

The command writes them, the API and the pages read them; nothing is played for a request. A file that is no
report, or too large, is refused by name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from gpucost.domain.errors import InputError
from gpucost.domain.time import Month
from gpucost.reports.base.document import NotAReport, parse_json, read_document, to_json
from gpucost.reports.replay.scenario_answer import ReplayReport

MOST_BYTES = 16 << 20
MOST_KEPT = 200
"""Of a month: more are not listed."""
NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,59}\Z")
_NAMES = "1 to 60 of a-z, 0-9 and dashes, not a dash first"


@dataclass(frozen=True, slots=True)
class KeptReplay:
    """One that is kept, and the names of its scenarios."""

    month: str
    name: str
    scenarios: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class KeptReplays:
    """All that are kept of a month."""

    replays: tuple[KeptReplay, ...]


def kept_file(folder: Path, month: Month, name: str, field: str = "replay") -> Path:
    """Where a replay is kept. Raises InputError for what is no name."""
    if NAME.match(name) is None:
        raise InputError(field, name, _NAMES)
    return folder / f"{month}.{name}.json"


def kept_text(report: ReplayReport) -> str:
    """What is kept of a replay: all but the starts."""
    return to_json(report)


def kept_names(folder: Path | None, month: Month) -> tuple[str, ...]:
    """The names of the replays of a month, sorted."""
    if folder is None or not folder.is_dir():
        return ()
    found = [
        each.name.removeprefix(f"{month}.").removesuffix(".json") for each in folder.glob(f"{month}.*.json")
    ]
    return tuple(sorted(each for each in found if NAME.match(each)))[:MOST_KEPT]


def kept_report(folder: Path | None, month: Month, name: str) -> ReplayReport | None:
    """None for one that is not kept. Raises InputError for a file that is no replay."""
    if folder is None:
        return None
    file = kept_file(folder, month, name)
    try:
        if file.stat().st_size > MOST_BYTES:
            raise InputError("replay", name, f"a replay of at most {MOST_BYTES >> 20} MiB")
        return read_document(ReplayReport, parse_json(file.read_bytes()))
    except FileNotFoundError:
        return None
    except (OSError, NotAReport) as error:
        raise InputError("replay", name, f"a replay that this version can read ({error})") from None


def kept_replays(folder: Path | None, month: Month) -> KeptReplays:
    """With the scenarios of each; one that cannot be read has none."""
    found = []
    for name in kept_names(folder, month):
        try:
            report = kept_report(folder, month, name)
        except InputError:
            report = None
        scenarios = () if report is None else tuple(each.name for each in report.scenarios)
        found.append(KeptReplay(str(month), name, scenarios))
    return KeptReplays(tuple(found))
