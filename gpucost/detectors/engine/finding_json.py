"""Findings as JSON and back, as stored in the ledger and served by the API.

Claims (``FindingDraft.episodes``) and labels are left out: they are not needed once a finding's waste is
computed, and there may be many.
"""

from __future__ import annotations

from dataclasses import replace

from pydantic import TypeAdapter

from gpucost.detectors.findings import Finding

_FINDING = TypeAdapter(Finding)


def to_json(finding: Finding) -> str:
    """Compact text, the same for equal findings."""
    return _FINDING.dump_json(_without_claims(finding)).decode()


def from_json(text: str) -> Finding:
    """The finding that ``to_json`` wrote. Raises pydantic's ValidationError for anything else."""
    return _FINDING.validate_json(text)


def _without_claims(finding: Finding) -> Finding:
    return replace(finding, draft=replace(finding.draft, episodes=(), labels=None))
