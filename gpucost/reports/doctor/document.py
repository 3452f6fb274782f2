"""A diagnosis for programs: what the terminal shows, as plain values."""

from __future__ import annotations

import json
from typing import Any

from gpucost.reports.doctor.model import ClusterDiagnosis, Diagnosis, Step


def as_json(diagnosis: Diagnosis) -> str:
    """One object, ending in a newline."""
    document = {
        "prometheus": diagnosis.url,
        "month": diagnosis.month,
        "can_tell": diagnosis.can_tell,
        "verdict": diagnosis.sentence,
        "command": diagnosis.command or None,
        "turn_on": diagnosis.turn_on or None,
        "clusters": [_cluster(each) for each in diagnosis.clusters],
        "steps": [_step(each) for each in diagnosis.steps],
        "not_known": [{"what": each.what, "reason": each.reason} for each in diagnosis.unread],
    }
    return json.dumps(document, indent=2) + "\n"


def _cluster(cluster: ClusterDiagnosis) -> dict[str, Any]:
    return {
        "cluster": cluster.cluster,
        "can_tell": cluster.can_tell,
        "first_whole_month": cluster.first_whole,
        "features": {
            feature.name.lower(): {"name": feature.value, "works": found.verdict.value, "why": found.why}
            for feature, found in cluster.features.items()
        },
        "steps": [_step(each) for each in cluster.steps],
        "facts": [{"what": each.what, "found": each.found} for each in cluster.facts],
    }


def _step(step: Step) -> dict[str, Any]:
    return {
        "title": step.title,
        "gains": [feature.name.lower() for feature in step.gains],
        "note": step.note,
        "settings": [{"where": each.where, "text": each.text} for each in step.settings],
    }
