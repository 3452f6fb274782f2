"""What a dump keeps of pods, of the templates for them, and of nodes."""

from __future__ import annotations

from gpucost.kube.dumps.kept import Kept, beginning, conditions, each, fields, named_values, plain, texts
from gpucost.kube.parse.pods import REFUSED_MESSAGE

EXPRESSIONS = each(fields("key", "operator", values=texts))
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_TERMS = each(fields(matchExpressions=EXPRESSIONS, matchFields=EXPRESSIONS))
_OF_PODS = fields(**{_REQUIRED: each(fields())})
_AMOUNTS = fields(requests=named_values, limits=named_values)
_ASKING = each(fields("restartPolicy", resources=_AMOUNTS))
_CONTAINERS = each(fields("name", "restartPolicy", restartPolicyRules=each(fields()), resources=_AMOUNTS))
TOLERATIONS = each(fields("key", "operator", "value", "effect"))
_TEMPLATE: Kept = {
    "affinity": fields(
        nodeAffinity=fields(**{_REQUIRED: fields(nodeSelectorTerms=_TERMS)}),
        podAffinity=_OF_PODS,
        podAntiAffinity=_OF_PODS,
    ),
    "containers": _ASKING,
    "initContainers": _ASKING,
    "nodeSelector": named_values,
    "overhead": named_values,
    "priorityClassName": plain,
    "resourceClaims": each(fields("name", "resourceClaimName", "resourceClaimTemplateName")),
    "resources": _AMOUNTS,
    "schedulerName": plain,
    "tolerations": TOLERATIONS,
    "topologySpreadConstraints": each(fields("whenUnsatisfiable")),
}
POD_TEMPLATE = fields(spec=fields(**_TEMPLATE))

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
        *("nodeName", "priority", "restartPolicy"),
        schedulingGates=each(fields("name")),
        schedulingGroup=fields("podGroupName"),
        workloadRef=fields("name", "podGroup", "podGroupReplicaKey"),
        **{**_TEMPLATE, "containers": _CONTAINERS, "initContainers": _CONTAINERS},
    ),
    "status": fields(
        *("phase", "reason", "startTime"),
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
