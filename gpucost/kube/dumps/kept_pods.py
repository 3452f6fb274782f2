"""What a dump keeps of pods, of the templates for them, and of nodes."""

from __future__ import annotations

from gpucost.kube.dumps.kept import (
    Kept,
    beginning,
    conditions,
    each,
    fields,
    named_values,
    only,
    plain,
    texts,
)
from gpucost.kube.parse.pods import REFUSED_MESSAGE
from gpucost.kube.parse.templates import TOPOLOGY_ANNOTATIONS

EXPRESSIONS = each(fields("key", "operator", values=texts))
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_TERMS = each(fields(matchExpressions=EXPRESSIONS, matchFields=EXPRESSIONS))
_OF_PODS = fields(**{_REQUIRED: each(fields())})
_AMOUNTS = fields(requests=named_values, limits=named_values)
ASKING = fields("restartPolicy", resources=_AMOUNTS)
"""Of a container in a template."""
_ALL_ASKING = each(ASKING)
_CONTAINERS = each(fields("name", "restartPolicy", restartPolicyRules=each(fields()), resources=_AMOUNTS))
TOLERATIONS = each(fields("key", "operator", "value", "effect"))
TEMPLATE: Kept = {
    "affinity": fields(
        nodeAffinity=fields(**{_REQUIRED: fields(nodeSelectorTerms=_TERMS)}),
        podAffinity=_OF_PODS,
        podAntiAffinity=_OF_PODS,
    ),
    "containers": _ALL_ASKING,
    "initContainers": _ALL_ASKING,
    "nodeSelector": named_values,
    "overhead": named_values,
    "preemptionPolicy": plain,
    "priorityClassName": plain,
    "resourceClaims": each(fields("name", "resourceClaimName", "resourceClaimTemplateName")),
    "resources": _AMOUNTS,
    "schedulerName": plain,
    "tolerations": TOLERATIONS,
    "topologySpreadConstraints": each(fields("whenUnsatisfiable")),
}
TEMPLATE_METADATA = fields(annotations=only(frozenset(TOPOLOGY_ANNOTATIONS)))
POD_TEMPLATE = fields(metadata=TEMPLATE_METADATA, spec=fields(**TEMPLATE))
NAMED = fields("name", "restartPolicy", resources=_AMOUNTS)
JOB_TEMPLATE = fields(metadata=TEMPLATE_METADATA, spec=fields(**{**TEMPLATE, "containers": each(NAMED)}))
"""With the names of containers, since a change of what one asks for names it."""

_ENDED = fields("exitCode", "reason", "startedAt", "finishedAt")
_CONTAINER_STATUSES = each(
    fields(
        "name",
        "restartCount",
        state=fields(running=fields("startedAt"), waiting=fields("reason"), terminated=_ENDED),
        lastState=fields(terminated=_ENDED),
    )
)
_MAPPINGS = each(fields("containerName", "resourceName", "requestName"))
POD: Kept = {
    "spec": fields(
        *("nodeName", "priority", "restartPolicy", "terminationGracePeriodSeconds"),
        schedulingGates=each(fields("name")),
        schedulingGroup=fields("podGroupName"),
        workloadRef=fields("name", "podGroup", "podGroupReplicaKey"),
        **{**TEMPLATE, "containers": _CONTAINERS, "initContainers": _CONTAINERS},
    ),
    "status": fields(
        *("phase", "reason", "startTime", "nominatedNodeName"),
        conditions=conditions("PodScheduled"),
        containerStatuses=_CONTAINER_STATUSES,
        initContainerStatuses=_CONTAINER_STATUSES,
        resourceClaimStatuses=each(fields("name", "resourceClaimName")),
        extendedResourceClaimStatus=fields("resourceClaimName", requestMappings=_MAPPINGS),
        message=beginning(REFUSED_MESSAGE),
    ),
}
_PHASE = fields(**{"f:status": fields(**{"f:phase": fields()})})
WRITERS: Kept = {"managedFields": each(fields("manager", "subresource", "time", fieldsV1=_PHASE))}
"""Of the metadata of pods: who wrote the phase, and when."""

NODE: Kept = {
    "spec": fields("unschedulable", taints=each(fields("key", "value", "effect"))),
    "status": fields(capacity=named_values, allocatable=named_values, conditions=conditions()),
}
