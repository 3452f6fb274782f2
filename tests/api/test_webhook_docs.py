"""What docs/webhook.md has people install."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from gpucost.advisor.advise import advise
from gpucost.api.webhook.admission_review import ReviewResult
from gpucost.api.webhook.adviser import AdmissionAdviser
from gpucost.api.webhook.deadline_queue import ReviewOutcome
from gpucost.attribution.teams import TeamRules
from gpucost.cli.state.source import ClusterLocation, load
from gpucost.cluster.objects.metadata import OwnerKeys
from gpucost.domain.jobs import JobKind, job_kind
from gpucost.kube.manifests import manifest_of, reread
from gpucost.service.advisor.advisor_service import AdvisorEngine, AdvisorService
from gpucost.settings.secret_files import fits_a_path
from tests.api.advisor_worlds import SmallEngine, StillCluster
from tests.support.cluster.installed import everything

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "webhook.md").read_text(encoding="utf-8")
_BLOCK = re.compile(r"^```yaml kubernetes\n(.*?)^```$", re.MULTILINE | re.DOTALL)
OBJECTS: list[dict[str, Any]] = [
    found for block in _BLOCK.findall(PAGE) for found in yaml.safe_load_all(block)
]
SERVICE, CONFIGURATION = OBJECTS
HOOK = CONFIGURATION["webhooks"][0]


@pytest.mark.parametrize("found", OBJECTS, ids=lambda found: found["kind"])
def test_objects_are_valid_by_the_schemas_of_kubernetes(found: dict[str, Any]) -> None:
    kubernetes_validate.validate(found, kubernetes_validate.latest_version(), strict=True)


def test_submissions_go_on_without_it() -> None:
    assert (HOOK["failurePolicy"], HOOK["timeoutSeconds"], HOOK["sideEffects"]) == ("Ignore", 2, "None")
    (excluded,) = HOOK["namespaceSelector"]["matchExpressions"]
    assert excluded["operator"] == "NotIn"
    assert {"kube-system", SERVICE["metadata"]["namespace"]} <= set(excluded["values"])


def test_it_leads_to_the_service() -> None:
    to = HOOK["clientConfig"]["service"]
    meta, (port,) = SERVICE["metadata"], SERVICE["spec"]["ports"]
    assert (to["namespace"], to["name"], to["port"]) == (meta["namespace"], meta["name"], port["port"])
    start, end = to["path"].rsplit("/", 1)
    assert start == "/v1/admission"
    assert fits_a_path(end), "an API server refuses the configuration else"


def test_its_rules_name_every_kind_that_people_submit() -> None:
    named = {
        (group, name) for rule in HOOK["rules"] for group in rule["apiGroups"] for name in rule["resources"]
    }
    served = {
        (kind.group, kind.plural): job_kind(f"{kind.group}/{version}" if kind.group else version, kind.kind)
        for kind, version in everything()
    }
    left_out = {JobKind.OTHER, JobKind.POD, JobKind.REPLICA_SET, JobKind.DAEMON_SET}
    assert named == {key for key, kind in served.items() if kind not in left_out}


def test_every_result_is_explained() -> None:
    for result in ReviewResult:
        assert f"`{result.value}`" in PAGE
    assert "dry_run" not in PAGE


def test_its_warnings_are_those_of_the_examples() -> None:
    """With all the time it wants."""
    source = str(DOCS / "examples" / "cluster.yaml")
    state = load(source, OwnerKeys(), ClusterLocation(None, "", ""), "", 0).state
    engine = AdvisorEngine(advise, SmallEngine().explain, manifest_of, reread)
    advising = AdvisorService(StillCluster(state), engine, TeamRules.default())
    advising.refresh()
    said: list[ReviewOutcome] = []

    def tell(outcome: ReviewOutcome, more: bool) -> bool:
        said.append(outcome)
        return more

    (command,) = re.findall(r"^    \$ kubectl apply -f (\S+)$", PAGE, re.MULTILINE)
    document = yaml.safe_load((DOCS / "examples" / command).read_text(encoding="utf-8"))
    AdmissionAdviser(advising)(document, time.monotonic() + 600, tell)
    assert list(said[-1].warnings) == re.findall(r"^    Warning: (.*)$", PAGE, re.MULTILINE)
    (created,) = re.findall(r"^    (\S+) created$", PAGE, re.MULTILINE)
    assert created == f"job.batch/{document['metadata']['name']}"
