"""Manifests, each with the verdict of a real API server: what it refuses is refused, and nothing else.

``tests/data/manifests`` has one file per kind; its README says how the verdicts came about.
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpucost.domain.errors import InputError
from gpucost.domain.jobs import job_kind
from gpucost.kube.manifests import manifest_of
from gpucost.kube.manifests.checks import examined
from tests.support.recorded import recorded_objects

NOW = 1_792_800_000_000
CORPUS = Path(__file__).parents[1] / "data" / "manifests"
KINDS = sorted(path.stem for path in CORPUS.glob("*.yaml"))


@cache
def cases(kind: str) -> list[dict[str, Any]]:
    return list(yaml.load_all((CORPUS / f"{kind}.yaml").read_text(), yaml.CSafeLoader))


def refusal(document: dict[str, Any]) -> str:
    """Empty for what is taken."""
    try:
        manifest_of(document, "x", NOW)
    except InputError as error:
        return str(error)
    return ""


def test_the_corpus_is_large_and_has_both_verdicts() -> None:
    verdicts = Counter(each["verdict"] for kind in KINDS for each in cases(kind))
    assert verdicts["refused"] >= 200
    assert verdicts["accepted"] >= 80
    assert all(each.get("source") or each["case"] == "plain" for kind in KINDS for each in cases(kind))


@pytest.mark.parametrize("kind", KINDS)
def test_the_verdict_is_that_of_the_api_server(kind: str) -> None:
    wrong = []
    for each in cases(kind):
        said = refusal(each["manifest"])
        if (each["verdict"] == "refused") != bool(said):
            way = "false refusal" if said else "false accept"
            wrong.append(f"{way}: {each['case']}: {said or each['message']} ({each.get('source')})")
    table = "\n".join(wrong)
    assert not wrong, f"{len(wrong)} of {len(cases(kind))}:\n{table}"


@pytest.mark.parametrize("kind", KINDS)
def test_a_refusal_names_the_field_that_the_api_server_names(kind: str) -> None:
    wrong = []
    for each in cases(kind):
        document, field = each["manifest"], each.get("field")
        if not field or each["case"] in CLEARER:
            continue
        known = job_kind(document["apiVersion"], document["kind"])
        _, flaws = examined(document, known)
        if not any(_is_the_same(field, flaw.field) for flaw in flaws):
            wrong.append(f"{each['case']}: {field} != {[flaw.field for flaw in flaws]}")
    table = "\n".join(wrong)
    assert not wrong, f"{len(wrong)}:\n{table}"


CLEARER = {
    "no selector",  # of a DaemonSet the labels that nothing matches
    "claim template without storage",  # spec.resources[storage] upstream
    "name of 64 characters",  # the label that is made of it
    "subPath upwards",  # without the number of the mount
    "surge and unavailable",  # either of two
    "toleration Exists with a value",  # the operator
    "toleration value with a blank",  # the operator
    "topology spread twice",  # the first of the two
}
"""Cases in which another field is named, which is the wrong one or says where it stands."""


def _is_the_same(theirs: str, ours: str) -> bool:
    """One may be a part of the other: of a request above its limit we name the resource too. What cannot be
    decoded the API server names without the numbers of lists."""
    theirs, ours = (each.replace("[", ".").replace("]", "").strip(".") for each in (theirs, ours))
    bare = ".".join(each for each in ours.split(".") if not each.isdigit())
    return any(
        one.startswith(other) for each in (ours, bare) for one, other in ((each, theirs), (theirs, each))
    )


def test_what_a_real_api_server_holds_is_taken() -> None:
    found = recorded_objects()["objects"]
    refused = []
    for each in (*found["pods"], *found["jobs.batch"]):
        _, flaws = examined(each, job_kind(each["apiVersion"], each["kind"]))
        refused += [f"{each['kind']} {each['metadata']['name']}: {flaw}" for flaw in flaws]
    assert refused == []
    assert (len(found["pods"]), len(found["jobs.batch"])) == (23, 17)
