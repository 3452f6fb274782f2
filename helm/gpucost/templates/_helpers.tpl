{{/* Names. Every helper of a component takes (dict "root" $ "component" "queue-collector"); the service's is "". */}}

{{- define "gpucost.chartName" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{/* A release may be called "1.a"; a Service may not. */}}
{{- define "gpucost.base" -}}
{{- $chart := include "gpucost.chartName" . -}}
{{- $name := .Values.fullnameOverride -}}
{{- if not $name -}}
{{- $name = contains $chart .Release.Name | ternary .Release.Name (printf "%s-%s" .Release.Name $chart) -}}
{{- end -}}
{{- $name = $name | replace "." "-" -}}
{{- regexMatch "^[0-9]" $name | ternary (printf "r%s" $name) $name -}}
{{- end -}}

{{/* At most 63 characters; what is cut off goes on in a hash, so that no two names become one. */}}
{{- define "gpucost.fullname" -}}
{{- $base := include "gpucost.base" .root -}}
{{- $suffix := empty .component | ternary "" (printf "-%s" .component) -}}
{{- if gt (add (len $base) (len $suffix)) 63 -}}
{{- $room := sub 56 (len $suffix) | int -}}
{{- printf "%s-%s%s" ($base | trunc $room | trimSuffix "-") ($base | sha256sum | trunc 6) $suffix -}}
{{- else -}}
{{- printf "%s%s" $base $suffix -}}
{{- end -}}
{{- end -}}

{{/* Of objects without a namespace: neither part has a dot, so two releases cannot meet. */}}
{{- define "gpucost.clusterName" -}}
{{- printf "%s.%s" (include "gpucost.fullname" .) .root.Release.Namespace -}}
{{- end -}}

{{- define "gpucost.selector" -}}
app.kubernetes.io/name: {{ include "gpucost.chartName" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name | trunc 63 | trimSuffix "-" | quote }}
app.kubernetes.io/component: {{ .component | default "service" }}
{{- end -}}

{{/* By labels of a user no object may lose what selects it, or whose it is. */}}
{{- define "gpucost.checkLabels" -}}
{{- range $key := list "app.kubernetes.io/name" "app.kubernetes.io/instance" "app.kubernetes.io/component" "app.kubernetes.io/managed-by" -}}
{{- if hasKey ($.labels | default dict) $key }}{{ fail (printf "%s: %s is the chart's own; take another label" $.value $key) }}{{ end -}}
{{- end -}}
{{- end -}}

{{/* Merged, since a key that stands twice is no YAML to many tools. "labels" may be given; they come before commonLabels. */}}
{{- define "gpucost.labels" -}}
{{- include "gpucost.checkLabels" (dict "labels" .root.Values.commonLabels "value" "commonLabels") -}}
{{- include "gpucost.checkLabels" (dict "labels" .labels "value" "monitoring") -}}
{{- $found := include "gpucost.selector" . | fromYaml -}}
{{- $_ := set $found "app.kubernetes.io/managed-by" .root.Release.Service -}}
{{- $others := dict
  "app.kubernetes.io/version" .root.Chart.AppVersion
  "app.kubernetes.io/part-of" "gpucost"
  "helm.sh/chart" (printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-") -}}
{{- merge $found (.labels | default dict) (.root.Values.commonLabels | default dict) $others | toYaml -}}
{{- end -}}

{{/* metadata of an object; "annotations" and "labels" may be given, "clusterWide" leaves out the namespace. */}}
{{- define "gpucost.metadata" -}}
name: {{ .name | default (empty .clusterWide | ternary (include "gpucost.fullname" .) (include "gpucost.clusterName" .)) }}
{{- if not .clusterWide }}
namespace: {{ .namespace | default .root.Release.Namespace }}
{{- end }}
labels:
  {{- include "gpucost.labels" . | nindent 2 }}
{{- with .annotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "gpucost.podMetadata" -}}
{{- $part := get (dict "gpu-exporter" "gpuExporter" "queue-collector" "queueCollector") .component | default "service" -}}
{{- include "gpucost.checkLabels" (dict "labels" .values.podLabels "value" (printf "%s.podLabels" $part)) -}}
labels:
  {{- merge (include "gpucost.selector" . | fromYaml) (.values.podLabels | default dict) (.root.Values.commonLabels | default dict) | toYaml | nindent 2 }}
{{- with merge (.annotations | default dict) .values.podAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "gpucost.image" -}}
{{- $name := .image.repository -}}
{{- with .root.Values.image.registry }}{{ $name = printf "%s/%s" (trimSuffix "/" .) $name }}{{ end -}}
{{- if .image.digest -}}
{{- printf "%s@%s" $name .image.digest -}}
{{- else -}}
{{- printf "%s:%s" $name (.image.tag | default .root.Chart.AppVersion) -}}
{{- end -}}
{{- end -}}

{{- define "gpucost.serviceAccountName" -}}
{{- if .values.serviceAccount.name -}}
{{ .values.serviceAccount.name }}
{{- else if .values.serviceAccount.create -}}
{{ include "gpucost.fullname" . }}
{{- else -}}
default
{{- end -}}
{{- end -}}

{{- define "gpucost.serviceAccount" -}}
{{- if .values.serviceAccount.create }}
{{- with .values.serviceAccount.name }}
{{- $makers := list }}
{{- range $part := list "gpuExporter" "queueCollector" "service" }}
{{- $v := get $.root.Values $part }}
{{- if and $v.enabled $v.serviceAccount.create (eq $v.serviceAccount.name $.values.serviceAccount.name) }}{{ $makers = append $makers $part }}{{ end }}
{{- end }}
{{- if gt (len $makers) 1 }}
{{- fail (printf "serviceAccount.name: %s would be made by %s; leave create on for one of them" . (join " and " $makers)) }}
{{- end }}
{{- end }}
---
apiVersion: v1
kind: ServiceAccount
metadata:
  {{- $name := include "gpucost.serviceAccountName" . }}
  {{- include "gpucost.metadata" (merge (dict "name" $name "annotations" .values.serviceAccount.annotations) .) | nindent 2 }}
# Pods that use the token ask for it.
automountServiceAccountToken: false
{{- end }}
{{- end -}}

{{/* A binding of a role to the account of a component; "role" is its name, "kind" Role or ClusterRole. */}}
{{- define "gpucost.binding" -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ .kind }}Binding
metadata:
  {{- include "gpucost.metadata" (merge (dict "name" .role "clusterWide" (eq .kind "ClusterRole")) .) | nindent 2 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: {{ .kind }}
  name: {{ .role }}
subjects:
  - kind: ServiceAccount
    name: {{ include "gpucost.serviceAccountName" . }}
    namespace: {{ .root.Release.Namespace }}
{{- end -}}

{{/* Of a pod. "root: true" is the exporter's, where the kubelet's socket is opened to root alone. */}}
{{- define "gpucost.podSecurityContext" -}}
{{- $ids := .root.Values.securityContext -}}
{{- if .asRoot }}
runAsUser: 0
runAsGroup: 0
{{- else }}
runAsNonRoot: true
{{- with $ids.runAsUser }}
runAsUser: {{ int64 . }}
{{- end }}
{{- with $ids.runAsGroup }}
runAsGroup: {{ int64 . }}
{{- end }}
{{- with $ids.fsGroup }}
fsGroup: {{ int64 . }}
fsGroupChangePolicy: OnRootMismatch
{{- end }}
{{- end }}
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "gpucost.containerSecurityContext" -}}
allowPrivilegeEscalation: false
privileged: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/* What every pod has; "token" says whether it speaks to the API server. */}}
{{- define "gpucost.podSpec" -}}
serviceAccountName: {{ include "gpucost.serviceAccountName" . }}
automountServiceAccountToken: {{ .token }}
# Else a Service named gpucost would put variables into the pod that look like settings.
enableServiceLinks: false
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
securityContext:
  {{- include "gpucost.podSecurityContext" . | trim | nindent 2 }}
{{- with .values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Further variables of an exporter: how it is scraped, free-form settings with its prefix, then "values.extraEnv". What
the chart writes itself is in "own", as KEY: what to use instead; other objects of it rest on settings in "read", which
must be where it sees them. */}}
{{- define "gpucost.settingsEnv" -}}
{{- $names := dict -}}
{{- range $key, $value := include "gpucost.scrapeSettings" .root | fromJson }}
- name: {{ printf "%s_%s" $.prefix $key }}
  value: {{ $value | quote }}
{{- end }}
{{- $token := "use scrapes.token" -}}
{{- $tls := "use scrapes.tls" -}}
{{- $scrapes := dict "SCRAPE_AUTH" $token "SCRAPE_TOKEN_FILES" $token "TLS_CERT_FILE" $tls "TLS_KEY_FILE" $tls "TLS_SELF_SIGNED" $tls -}}
{{- range $key, $instead := merge $scrapes .own -}}
{{- if hasKey ($.values.settings | default dict) $key }}{{ fail (printf "%s.settings.%s: not here: %s" $.part $key $instead) }}{{ end -}}
{{- $_ := set $names (printf "%s_%s" $.prefix $key) $instead -}}
{{- end -}}
{{- range $key := .read -}}
{{- $_ := set $names (printf "%s_%s" $.prefix $key) (printf "use %s.settings.%s" $.part $key) -}}
{{- end -}}
{{- range $key, $value := .values.settings }}
- name: {{ printf "%s_%s" $.prefix $key }}
  value: {{ kindIs "float64" $value | ternary (toJson $value) (toString $value) | quote }}
{{- $_ := set $names (printf "%s_%s" $.prefix $key) (printf "it is in %s.settings already" $.part) }}
{{- end }}
{{- range .values.extraEnv }}
{{- $name := .name }}
{{- with get $names $name }}{{ fail (printf "%s.extraEnv: %s: not here: %s" $.part $name .) }}{{ end }}
- {{ toYaml . | nindent 2 | trim }}
{{- end }}
{{- end -}}

{{/* What a ClusterState is made of: held to gpucost.kube.parse.collections by a test. The groups of Kubernetes itself, and of
the others those in cluster.apiGroups. */}}
{{- define "gpucost.watchRules" -}}
- apiGroups: [""]
  resources: [pods, nodes, namespaces]
  verbs: [list, watch]
- apiGroups: [scheduling.k8s.io]
  resources: [priorityclasses, workloads, podgroups, compositepodgroups]
  verbs: [list, watch]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [list, watch]
- apiGroups: [batch]
  resources: [jobs, cronjobs]
  verbs: [list, watch]
- apiGroups: [apps]
  resources: [deployments, statefulsets, replicasets, daemonsets]
  verbs: [list, watch]
- apiGroups: [resource.k8s.io]
  resources: [resourceslices, resourceclaims, devicetaintrules]
  verbs: [list, watch]
{{- $others := dict
  "jobset.x-k8s.io" (list "jobsets")
  "trainer.kubeflow.org" (list "trainjobs")
  "kubeflow.org" (list "pytorchjobs" "tfjobs" "xgboostjobs" "paddlejobs" "jaxjobs" "mpijobs" "notebooks")
  "ray.io" (list "rayclusters" "rayjobs" "rayservices")
  "leaderworkerset.x-k8s.io" (list "leaderworkersets")
  "batch.volcano.sh" (list "jobs")
  "kueue.x-k8s.io" (list "clusterqueues" "localqueues" "cohorts" "resourceflavors" "topologies" "admissionchecks"
    "workloadpriorityclasses" "workloads")
  "scheduling.x-k8s.io" (list "podgroups")
  "scheduling.volcano.sh" (list "podgroups" "queues")
  "topology.volcano.sh" (list "hypernodes")
  "resource.nvidia.com" (list "computedomains") -}}
{{- range .Values.cluster.apiGroups }}
- apiGroups: [{{ . }}]
  resources: {{ get $others . | toJson }}
  verbs: [list, watch]
{{- end }}
{{- end -}}

{{/* One endpoint of a monitor. A namespace or pod in our series is that of a workload, so they are kept; series of
exporters get no others from their target but the cluster. */}}
{{- define "gpucost.endpoint" -}}
- port: {{ .port }}
  path: /metrics
  interval: {{ .root.Values.monitoring.interval }}
  honorLabels: true
  {{- if .exporter }}
  {{- with include "gpucost.scrapeEndpoint" . | trim }}{{ . | nindent 2 }}{{ end }}
  relabelings:
    - {action: labeldrop, regex: pod|container|endpoint|service}
    - targetLabel: cluster
      replacement: {{ .root.Values.cluster.name | quote }}
      action: replace
  {{- end }}
{{- end -}}

{{/* By which Prometheus and Alertmanager know the service. */}}
{{- define "gpucost.serviceTlsConfig" -}}
serverName: {{ printf "%s.%s.svc" (include "gpucost.fullname" (dict "root" . "component" "")) .Release.Namespace }}
ca:
  secret: {name: {{ .Values.service.tls.secret }}, key: ca.crt, optional: true}
{{- end -}}

{{/* A monitor's head and selector; "kind" and "list" name it, "endpoints" is text. */}}
{{- define "gpucost.monitor" -}}
---
apiVersion: monitoring.coreos.com/v1
kind: {{ .kind }}
metadata:
  {{- include "gpucost.metadata" (merge (dict "labels" .root.Values.monitoring.labels) .) | nindent 2 }}
spec:
  selector:
    matchLabels:
      {{- include "gpucost.selector" . | nindent 6 }}
  {{ .list }}:
    {{- .endpoints | nindent 4 }}
{{- end -}}

{{- define "gpucost.pdb" -}}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  {{- include "gpucost.metadata" . | nindent 2 }}
spec:
  maxUnavailable: {{ int .maxUnavailable }}
  selector:
    matchLabels:
      {{- include "gpucost.selector" . | nindent 6 }}
{{- end -}}
