"""Which objects say how Kueue and Volcano are configured and which version runs; how their text is read.

Kueue: ConfigMap ``kueue-manager-config`` and Deployment ``kueue-controller-manager``, in ``kueue-system``
(kueue v0.19.2, config/components/manager, charts/kueue/templates/manager). Volcano: ConfigMap
``<release>-scheduler-configmap`` and Deployment ``<release>-scheduler``, in ``volcano-system`` (volcano
v1.15.1, installer/helm/chart/volcano/templates/scheduler.yaml). Names differ between installations, so what
comes without one that was asked for is known by what is in it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import yaml

from gpucost.cluster.objects import Flaw
from gpucost.domain.errors import InputError
from gpucost.kube.dumps.dump_yaml import documents
from gpucost.kube.parse.reading import Part

KUEUE_KEY = "controller_manager_config.yaml"
VOLCANO_KEY = "volcano-scheduler.conf"
KUEUE_GROUP = "config.kueue.x-k8s.io"
KUEUE_IMAGE, VOLCANO_IMAGE = "kueue", "vc-scheduler"

MOST_CHARS = 1 << 20
"""Of one configuration: no ConfigMap holds more."""

_IMAGE = re.compile(rf"(?:.*/)?({KUEUE_IMAGE}|{VOLCANO_IMAGE})(?::([A-Za-z0-9_][A-Za-z0-9_.-]*))?(?:@.*)?")
_TAG = re.compile(r"[^@]*/[^@/:]*:([A-Za-z0-9_][A-Za-z0-9_.-]*)(?:@.*)?")
_VERSION = re.compile(r"v?\d+\.\d+(\..*)?")
_GATE = re.compile(r"[A-Za-z0-9]+")
_FLAG = "--feature-gates"
_TRUTHS = {"1": True, "t": True, "true": True, "0": False, "f": False, "false": False}


@dataclass(frozen=True, slots=True)
class Deployed:
    """What a Deployment says: the version it runs (``v0.19.2``; empty where nothing says), and the feature
    gates among its arguments."""

    version: str = ""
    gates: Mapping[str, bool] = field(default_factory=dict)


NOT_DEPLOYED = Deployed()


def document(text: str) -> Mapping[str, Any] | None:
    """The mapping that a configuration is; None where it is none, or cannot be read.

    JSON, which is how a dump holds it, or YAML without aliases, merge keys and tags.
    """
    if len(text) > MOST_CHARS:
        return None
    try:
        if text.lstrip().startswith("{"):
            found = json.loads(text)
        else:
            found = next((each for each in documents("", text) if each is not None), None)
    except (InputError, yaml.YAMLError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def in_words(flaw: Flaw) -> str:
    """A value that makes no sense, so that its default is taken."""
    return f"{flaw.field} is {flaw.value}, not {flaw.allowed}: taken as if it were not set"


def kueue_text(config_map: Mapping[str, Any]) -> str | None:
    """Kueue's Configuration; None in a ConfigMap of somebody else, such as JobSet, which has the same key."""
    text = config_text(config_map, KUEUE_KEY)
    if text is None:
        return None
    found = document(text)
    if found is None:
        return text if "kueue" in name_of(config_map)[1] else None
    return text if str(found.get("apiVersion", "")).startswith(f"{KUEUE_GROUP}/") else None


def config_text(config_map: Mapping[str, Any], key: str) -> str | None:
    """What a ConfigMap has under a key."""
    data = config_map.get("data")
    text = data.get(key) if isinstance(data, dict) else None
    return text if isinstance(text, str) else None


def name_of(found: Mapping[str, Any]) -> tuple[str, str]:
    """Namespace and name."""
    part = Part(found).part("metadata")
    return part.text("namespace"), part.text("name")


def is_kueue_manager(deployment: Mapping[str, Any]) -> bool:
    """By its image, else by the end of its name, before which Helm puts the release."""
    is_named = name_of(deployment)[1].endswith("kueue-controller-manager")
    return is_named or KUEUE_IMAGE in _images(deployment)


def is_volcano_scheduler(deployment: Mapping[str, Any]) -> bool:
    """By its image, else by the label of its chart."""
    labels = Part(deployment).part("metadata").labels("labels")
    return labels.get("app") == "volcano-scheduler" or VOLCANO_IMAGE in _images(deployment)


def deployed(deployment: Mapping[str, Any]) -> Deployed:
    """Of the container with a known image, else the first: the image's tag, or the label
    ``app.kubernetes.io/version`` where the tag is no version."""
    containers = _containers(deployment)
    if not containers:
        return NOT_DEPLOYED
    known = [each for each in containers if scheduler_image(each.raw("image"))]
    container = (known or containers)[0]
    label = Part(deployment).part("metadata").labels("labels").get("app.kubernetes.io/version", "")
    tag = _TAG.fullmatch("/" + container.text("image"))
    version = tag[1] if tag else ""
    if label and not _VERSION.fullmatch(version):
        version = label
    return Deployed(version, gates_in(container.raw("args")))


def scheduler_image(image: object) -> str:
    """``kueue:v0.19.2`` of the image of a scheduler, without its registry; empty for any other image."""
    found = _IMAGE.fullmatch(image) if isinstance(image, str) else None
    if found is None:
        return ""
    return f"{found[1]}:{found[2]}" if found[2] else found[1]


def gates_in(args: object) -> dict[str, bool]:
    """Feature gates in a container's arguments: ``--feature-gates=A=true,B=false``, or in two arguments."""
    words = [each for each in args if isinstance(each, str)] if isinstance(args, list) else []
    texts = [each.removeprefix(f"{_FLAG}=") for each in words if each.startswith(f"{_FLAG}=")]
    texts += [after for word, after in pairwise(words) if word == _FLAG]
    gates = {}
    for pair in ",".join(texts).split(","):
        name, _, value = pair.strip().partition("=")
        truth = _TRUTHS.get(value.strip().lower())
        if _GATE.fullmatch(name) and truth is not None:
            gates[name] = truth
    return gates


def as_argument(gates: Mapping[str, bool]) -> str:
    """The same as one argument."""
    return f"{_FLAG}=" + ",".join(f"{name}={str(value).lower()}" for name, value in gates.items())


def _images(deployment: Mapping[str, Any]) -> set[str]:
    return {scheduler_image(each.raw("image")).partition(":")[0] for each in _containers(deployment)}


def _containers(deployment: Mapping[str, Any]) -> list[Part]:
    return Part(deployment).part("spec").part("template").part("spec").parts("containers")
