"""The API of a service that runs, against its own description: what schemathesis thinks of, with a key."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Unsatisfiable
from schemathesis.core.failures import Failure, FailureGroup
from schemathesis.specs.openapi.checks import positive_data_acceptance

from gpucost.access.keys import format_key, hash_secret
from gpucost.ledger.ledger import Ledger
from gpucost.telemetry.recorded_source import record
from tests.api.findings import lives, save
from tests.cli.state_worlds import cluster
from tests.kube.pki import write_kubeconfig
from tests.service.worlds import NOW_MS, frames
from tests.support.cluster.server import ClusterServer
from tests.support.ports import free_port
from tests.support.programs import answers
from tests.support.service_process import service

SECRETS = {"root": "r00t", "ada": "s3cret_of-ada"}
KEYS = (
    {"id": "root", "sha256": hash_secret(SECRETS["root"]), "role": "admin"},
    {"id": "ada", "sha256": hash_secret(SECRETS["ada"]), "role": "team-admin", "teams": ["research"]},
)
_MODES = (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE)
# A text that is too long for each of three places in a path takes schemathesis seconds to make.
_SLOW_PLACES, _ONE_IN = 2, 20
_LONGEST_URL = 60_000
"""The listener hangs up on what is longer, before the API sees it."""


@dataclass
class Fuzzed:
    """What came out of it: requests by status, and what the description does not allow, by operation."""

    operations: int = 0
    statuses: Counter[int] = field(default_factory=Counter)
    violations: dict[str, str] = field(default_factory=dict)
    too_long: int = 0
    untried: list[str] = field(default_factory=list)
    """Of which schemathesis finds no example."""

    @property
    def cases(self) -> int:
        return self.statuses.total()

    @property
    def server_errors(self) -> int:
        return sum(count for status, count in self.statuses.items() if status >= 500)


@contextmanager
def running_service(folder: Path, ledger_url: str) -> Iterator[str]:
    """``gpucost serve`` that has read a day, has findings and watches a cluster; its URL."""
    record(folder / "recording", frames())
    with Ledger.open(ledger_url, now=lambda: NOW_MS) as ledger:
        for each in lives():
            save(ledger, each)
    port = free_port()
    settings: dict[str, Any] = {
        "ledger": {"url": ledger_url},
        "source": {"kind": "recorded", "path": str(folder / "recording")},
        # No detector runs: the findings stay what they are.
        "detectors": {"enabled": False, "state": "kubeconfig", "kubeconfig": str(folder / "kubeconfig")},
        # schemathesis makes no pause.
        "api": {"keys": KEYS, "rate": 0, "refused_rate": 0},
    }
    with ClusterServer() as server:
        for each in cluster():
            server.put(each)
        write_kubeconfig(folder / "kubeconfig", {"server": server.url})
        program = service(folder, settings, port, NOW_MS)
        address = f"http://127.0.0.1:{port}"
        program.is_ready = lambda: answers(f"{address}/healthz/ready")
        with program:
            yield address


def fuzz(address: str, key_id: str, examples: int, *, first: int = 0) -> Fuzzed:
    """Every operation of the description, ``examples`` times as it wants them and as often otherwise.

    The requests follow from ``first`` alone.
    """
    headers = {"Authorization": f"Bearer {format_key(key_id, SECRETS[key_id])}"}
    described = requests.get(f"{address}/v1/openapi.json", headers=headers, timeout=30).json()
    schema = schemathesis.openapi.from_dict(described)
    schema.config.update(base_url=address)
    found = Fuzzed()
    with requests.Session() as session:
        for path, item in described["paths"].items():
            for method, operation in item.items():
                found.operations += 1
                for mode in _MODES:
                    if mode is _MODES[1] and not {"parameters", "requestBody"} & set(operation):
                        continue
                    slow = mode is _MODES[1] and path.count("{") >= _SLOW_PLACES
                    wanted = examples // _ONE_IN if slow else examples
                    if not wanted:
                        continue
                    strategy = schema[path][method.upper()].as_strategy(generation_mode=mode)
                    try:
                        _try(strategy, wanted, first, headers, session, found)
                    except Unsatisfiable:
                        found.untried.append(f"{method.upper()} {path} {mode.value}")
                    except (Failure, FailureGroup) as failure:
                        found.violations[f"{method.upper()} {path} {mode.value}"] = str(failure)
    return found


def _try(
    strategy: Any,
    examples: int,
    first: int,
    headers: Mapping[str, str],
    session: requests.Session,
    found: Fuzzed,
) -> None:
    @seed(first)
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(case=strategy)
    def check(case: schemathesis.Case) -> None:
        asked = requests.Request(**case.as_transport_kwargs(headers=headers)).prepare()
        if len(asked.url or "") > _LONGEST_URL:
            found.too_long += 1
            return
        answer = case.call(headers=headers, session=session)
        found.statuses[answer.status_code] += 1
        # A well-formed month that the ledger has nothing of is refused, which no schema can foresee.
        case.validate_response(answer, headers=headers, excluded_checks=[positive_data_acceptance])

    check()
