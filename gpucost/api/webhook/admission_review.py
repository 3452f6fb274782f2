"""Requests and responses of the API server: AdmissionReview of admission.k8s.io/v1.

Shapes as in kubernetes (staging/src/k8s.io/api/admission/v1/types.go, v1.34), only the fields used here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypedDict

from gpucost.domain.text import most_values_of

API_VERSION = "admission.k8s.io/v1"
KIND = "AdmissionReview"
MOST_BYTES = 1_048_576
"""A larger review is allowed without advice: the API server takes objects of about 1.5 MB."""
MOST_VALUES = 20_000
"""So is one with more values, counted by its commas and brackets: reading them would hold up all other
reviews. The limit is that of ``gpucost.api.server.errors`` for a manifest; large ones have some hundred."""

RULES_KEY = "rules"
"""Of the annotation that names the rules an answer follows."""

_LONGEST_UID = 253
_AMOUNTS = frozenset({"limits", "requests"})
# Parts that are defined elsewhere: claims, and the runtime of a TrainJob with its pods.
_REFERENCES = frozenset({"resourceClaims", "claims", "runtimeRef"})
# The API server writes the uid first; of a review that is too large, or no JSON, only this much is read.
_HEAD_BYTES = 4096
_UID = re.compile(rb'"request"\s*:\s*\{\s*"uid"\s*:\s*"([-0-9A-Za-z._:]{1,253})"')


class AdmissionResponse(TypedDict, total=False):
    """``warnings`` are shown to the submitter, by kubectl each on a line of its own. ``auditAnnotations`` are
    of the API server's audit trail."""

    uid: str
    allowed: bool
    warnings: list[str]
    auditAnnotations: dict[str, str]


class AdmissionAnswer(TypedDict):
    """The whole response."""

    apiVersion: str
    kind: str
    response: AdmissionResponse


class ReviewResult(StrEnum):
    """The outcome of a review: advice, or why none."""

    ADVISED = "advised"
    NO_GPUS = "no_gpus"
    OWNED = "owned"
    """Made by a controller, whose own object got the advice."""
    OPERATION = "operation"
    """Neither CREATE nor UPDATE, or of a subresource."""
    NO_OBJECT = "no_object"
    INVALID_MANIFEST = "invalid_manifest"
    MALFORMED = "malformed"
    VERSION = "unsupported_version"
    CONTENT_TYPE = "content_type"
    TOO_LARGE = "too_large"
    NO_STATE = "no_state"
    BUSY = "busy"
    DEADLINE = "deadline"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class AdmissionReview:
    """One request. ``refused`` says why there will be no advice; else ``document`` is the object, with its
    namespace in it."""

    uid: str
    refused: ReviewResult | None = None
    namespace: str = ""
    document: Mapping[str, Any] | None = None


def read(body: bytes, content_type: str, *, is_whole: bool = True) -> AdmissionReview:
    """A review from any content. ``is_whole``: ``body`` is all of it. Never raises."""
    is_large, uid = not is_whole or len(body) > MOST_BYTES, uid_at_the_head(body)
    if (uid and is_large) or most_values_of(body) > MOST_VALUES:
        return AdmissionReview(uid, ReviewResult.TOO_LARGE)
    try:
        sent = json.loads(body)
    except (ValueError, RecursionError):
        return AdmissionReview(uid, ReviewResult.TOO_LARGE if is_large else ReviewResult.MALFORMED)
    request = sent.get("request") if isinstance(sent, dict) else None
    if not isinstance(request, dict) or not _is_uid(request.get("uid")):
        return AdmissionReview("", ReviewResult.MALFORMED)
    uid = str(request["uid"])
    refused = ReviewResult.TOO_LARGE if is_large else _refusal(sent, request, content_type)
    if refused is not None:
        return AdmissionReview(uid, refused)
    namespace = request.get("namespace")
    return _with_namespace(uid, request["object"], namespace if isinstance(namespace, str) else "")


def answer(uid: str, warnings: Sequence[str] = (), rules: str = "") -> bytes:
    """The response as JSON: always allowed. ``rules`` stand in the audit trail of the API server, which puts
    the webhook's name before the key; no object is changed."""
    response = AdmissionResponse(uid=uid, allowed=True)
    if warnings:
        response["warnings"] = list(warnings)
    if rules:
        response["auditAnnotations"] = {RULES_KEY: rules}
    return json.dumps(AdmissionAnswer(apiVersion=API_VERSION, kind=KIND, response=response)).encode()


def _is_uid(found: object) -> bool:
    """Whether it can be sent back: a lone surrogate cannot be."""
    return isinstance(found, str) and 0 < len(found) <= _LONGEST_UID and found.isprintable()


def _refusal(sent: Mapping[str, Any], request: Mapping[str, Any], content_type: str) -> ReviewResult | None:
    found = request.get("object")
    metadata = found.get("metadata") if isinstance(found, dict) else None
    checks = (
        (content_type.partition(";")[0].strip().lower() != "application/json", ReviewResult.CONTENT_TYPE),
        (sent.get("apiVersion") != API_VERSION or sent.get("kind") != KIND, ReviewResult.VERSION),
        (request.get("operation") != "CREATE" or bool(request.get("subResource")), ReviewResult.OPERATION),
        (not isinstance(metadata, dict), ReviewResult.NO_OBJECT),
        (isinstance(metadata, dict) and _has_controller(metadata), ReviewResult.OWNED),
        (isinstance(found, dict) and not may_ask_gpus(found), ReviewResult.NO_GPUS),
    )
    return next((result for applies, result in checks if applies), None)


def may_ask_gpus(document: Mapping[str, Any]) -> bool:
    """Whether anything in ``spec`` asks for an extended resource or a claim, or may by what it refers to.

    Most objects ask for neither, and are recognized here at once, without the state of the cluster. GPUs are
    extended resources, whose names have a slash (kubernetes, pkg/apis/core/v1/helper/helpers.go:
    IsExtendedResourceName, v1.34).
    """
    left: list[Any] = [document.get("spec")]
    while left:
        found = left.pop()
        if isinstance(found, list):
            left.extend(found)
        elif isinstance(found, dict):
            for key, value in found.items():
                if key in _REFERENCES and value:
                    return True
                if key in _AMOUNTS and isinstance(value, dict) and any("/" in name for name in value):
                    return True
                if isinstance(value, dict | list):
                    left.append(value)
    return False


def _has_controller(metadata: Mapping[str, Any]) -> bool:
    owners = metadata.get("ownerReferences")
    return isinstance(owners, list) and any(
        isinstance(each, dict) and each.get("controller") is True for each in owners
    )


def _with_namespace(uid: str, found: Mapping[str, Any], namespace: str) -> AdmissionReview:
    """The request's namespace holds: no other can be meant."""
    metadata = found["metadata"]
    if namespace and metadata.get("namespace") != namespace:
        found = {**found, "metadata": {**metadata, "namespace": namespace}}
    return AdmissionReview(uid, None, namespace, found)


def uid_at_the_head(body: bytes) -> str:
    """The uid without reading the rest; empty where it stands elsewhere."""
    found = _UID.search(body[:_HEAD_BYTES])
    return found[1].decode() if found else ""
