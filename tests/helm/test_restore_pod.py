"""The pod of docs/backup.md that holds the ledger's volume has what the service's own pods have."""

from __future__ import annotations

import kubernetes_validate
import pytest
import yaml

from tests.support.helm_chart import ROOT, needs_helm, objects, one
from tests.support.pages import blocks, section, values_in

pytestmark = [needs_helm, pytest.mark.fault(70)]

PAGE = section(ROOT / "docs" / "backup.md", "In the cluster")
GUIDE = (ROOT / "docs" / "install.md").read_text("utf-8")


def test_the_pod_that_restores_is_like_the_services() -> None:
    [pod] = map(yaml.safe_load, blocks(PAGE, "yaml"))
    kubernetes_validate.validate(pod, "1.34", strict=True)
    spec = objects(values_in(GUIDE)[0], "gpucost", "gpucost")
    theirs = one(spec, "Deployment", "service")["spec"]["template"]["spec"]
    assert pod["spec"]["securityContext"] == theirs["securityContext"]
    [ours], [init] = pod["spec"]["containers"], theirs["initContainers"]
    for name in ("image", "env", "resources", "securityContext", "volumeMounts"):
        assert ours[name] == init[name], name
    volumes = {each["name"]: each for each in theirs["volumes"]}
    assert all(each == volumes[each["name"]] for each in pod["spec"]["volumes"])
    assert pod["metadata"]["namespace"] == "gpucost"
    assert f"pod/{pod['metadata']['name']} " in PAGE


def test_the_job_that_migrates_is_found_by_its_label() -> None:
    values = [each for each in values_in(GUIDE) if each.get("ledger", {}).get("kind") == "postgresql"]
    found = one(objects(values[0], "gpucost", "gpucost"), "Job", "migrate")
    name, _, label = "app.kubernetes.io/component=migrate".partition("=")
    assert found["metadata"]["labels"][name] == label
    assert PAGE.count(f"delete job -l {name}={label}\n") == GUIDE.count(f"delete job -l {name}={label}`") == 1
