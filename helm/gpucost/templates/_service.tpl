{{/* What the service needs to know: secrets, files, settings. */}}

{{- define "gpucost.webhookName" -}}
{{- include "gpucost.fullname" (dict "root" . "component" "webhook") -}}
{{- end -}}

{{- define "gpucost.webhookHost" -}}
{{- printf "%s.%s.svc" (include "gpucost.webhookName" .) .Release.Namespace -}}
{{- end -}}

{{- define "gpucost.webhookTlsSecret" -}}
{{- if eq .Values.webhook.certificates "existingSecret" -}}
{{ .Values.webhook.existingSecret.name }}
{{- else -}}
{{ include "gpucost.fullname" (dict "root" . "component" "webhook-tls") }}
{{- end -}}
{{- end -}}

{{/* Secrets that are mounted, as {name: Secret}: key K of one is /etc/gpucost/secrets/NAME/K. */}}
{{- define "gpucost.secrets" -}}
{{- $found := dict -}}
{{- $v := .Values -}}
{{- if eq $v.ledger.kind "postgresql" }}{{ $_ := set $found "ledger" $v.ledger.postgresql.secret }}{{ end -}}
{{- with $v.prometheus.bearerToken.secret }}{{ $_ := set $found "prometheus-token" . }}{{ end -}}
{{- with $v.prometheus.basicAuth.secret }}{{ $_ := set $found "prometheus-password" . }}{{ end -}}
{{- with $v.prometheus.ca.secret }}{{ $_ := set $found "prometheus-ca" . }}{{ end -}}
{{- with $v.service.tls.secret }}{{ $_ := set $found "api-tls" . }}{{ end -}}
{{- if $v.webhook.enabled -}}
{{- $_ := set $found "webhook-token" (include "gpucost.fullname" (dict "root" . "component" "webhook-token")) -}}
{{- if ne $v.webhook.certificates "managed" }}{{ $_ := set $found "webhook-tls" (include "gpucost.webhookTlsSecret" .) }}{{ end -}}
{{- end -}}
{{- range $name, $secret := $v.service.secrets -}}
{{- if hasKey $found $name }}{{ fail (printf "service.secrets.%s: this name is the chart's own; take another" $name) }}{{ end -}}
{{- $_ := set $found $name $secret -}}
{{- end -}}
{{- toJson $found -}}
{{- end -}}

{{- define "gpucost.secretFile" -}}
/etc/gpucost/secrets/{{ .name }}/{{ .key }}
{{- end -}}

{{/* The group ledger of the settings. */}}
{{- define "gpucost.ledgerConfig" -}}
{{- if eq .Values.ledger.kind "postgresql" -}}
{{- dict "url_file" (include "gpucost.secretFile" (dict "name" "ledger" "key" .Values.ledger.postgresql.key)) | toJson -}}
{{- else -}}
{{- dict "url" "sqlite:////var/lib/gpucost/gpucost.db" | toJson -}}
{{- end -}}
{{- end -}}

{{- define "gpucost.prometheusConfig" -}}
{{- $p := .Values.prometheus -}}
{{- if and $p.bearerToken.secret (or $p.basicAuth.secret $p.basicAuth.username) -}}
{{- fail "prometheus.bearerToken and prometheus.basicAuth: Prometheus takes one of them; leave the other empty" -}}
{{- end -}}
{{- if and $p.basicAuth.secret (not $p.basicAuth.username) -}}
{{- fail "prometheus.basicAuth.username: needed beside prometheus.basicAuth.secret" -}}
{{- end -}}
{{- if and $p.basicAuth.username (not $p.basicAuth.secret) -}}
{{- fail "prometheus.basicAuth.secret: needed beside prometheus.basicAuth.username" -}}
{{- end -}}
{{- $found := dict "url" $p.url "cluster" .Values.cluster.name -}}
{{- /* Whose series are believed. A ServiceMonitor's job is the Service, a PodMonitor's its own namespace and name. */ -}}
{{- $jobs := list -}}
{{- if .Values.queueCollector.enabled }}{{ $jobs = append $jobs (include "gpucost.fullname" (dict "root" . "component" "queue-collector")) }}{{ end -}}
{{- if .Values.gpuExporter.enabled }}{{ $jobs = append $jobs (printf "%s/%s" .Release.Namespace (include "gpucost.fullname" (dict "root" . "component" "gpu-exporter"))) }}{{ end -}}
{{- if $jobs -}}
{{- $_ := set $found "gpucost_namespace" .Release.Namespace -}}
{{- if .Values.monitoring.serviceMonitors.enabled }}{{ $_ := set $found "gpucost_jobs" $jobs }}{{ end -}}
{{- end -}}
{{- /* Not "pod": series of pods have their own, by which progress is told. */ -}}
{{- with .Values.queueCollector }}{{ if and .enabled (gt (int .replicas) 1) }}{{ $_ := set $found "replica_labels" (list "instance") }}{{ end }}{{ end -}}
{{- if $p.bearerToken.secret -}}
{{- $_ := set $found "bearer_token_file" (include "gpucost.secretFile" (dict "name" "prometheus-token" "key" $p.bearerToken.key)) -}}
{{- end -}}
{{- if $p.basicAuth.secret -}}
{{- $_ := set $found "username" $p.basicAuth.username -}}
{{- $_ := set $found "password_file" (include "gpucost.secretFile" (dict "name" "prometheus-password" "key" $p.basicAuth.key)) -}}
{{- end -}}
{{- if $p.ca.secret -}}
{{- $_ := set $found "ca_file" (include "gpucost.secretFile" (dict "name" "prometheus-ca" "key" $p.ca.key)) -}}
{{- end -}}
{{- toJson $found -}}
{{- end -}}

{{- define "gpucost.webhookConfig" -}}
{{- $found := dict "enabled" true "host" "0.0.0.0" "port" 8443 "token_file" (include "gpucost.secretFile" (dict "name" "webhook-token" "key" "token")) -}}
{{- if eq .Values.webhook.certificates "managed" -}}
{{- $_ := set $found "certificates" (dict
  "mode" "managed"
  "secret_name" (include "gpucost.webhookTlsSecret" .)
  "namespace" .Release.Namespace
  "webhook_configuration" (include "gpucost.clusterName" (dict "root" . "component" ""))
  "dns_names" (list (include "gpucost.webhookHost" .))) -}}
{{- else -}}
{{- $_ := set $found "tls_cert_file" (include "gpucost.secretFile" (dict "name" "webhook-tls" "key" "tls.crt")) -}}
{{- $_ := set $found "tls_key_file" (include "gpucost.secretFile" (dict "name" "webhook-tls" "key" "tls.key")) -}}
{{- end -}}
{{- toJson $found -}}
{{- end -}}

{{/* Refuses settings that other objects of the chart rest on: containers' ports, probes, mounts, the migration. */}}
{{- define "gpucost.checkConfig" -}}
{{- $always := "the chart's own; a key is always required, and how people log in is in the values below access" -}}
{{- $port := "the chart's own; the port of the Service is service.port" -}}
{{- $ledger := "the chart's own; use ledger.kind and ledger.postgresql.secret" -}}
{{- $webhook := "the chart's own; use the values below webhook" -}}
{{- $own := dict
  "api" (dict "host" $port "port" $port "auth" $always "tls_cert_file" "use service.tls.secret" "tls_key_file" "use service.tls.secret")
  "ledger" (dict "url" $ledger "url_file" $ledger)
  "webhook" (dict "enabled" "use webhook.enabled" "host" $webhook "port" $webhook "token" "use webhook.token"
    "token_file" "use webhook.token" "tls_cert_file" "use webhook.certificates" "tls_key_file" "use webhook.certificates"
    "certificates" "use webhook.certificates") -}}
{{- range $group, $settings := .Values.service.config -}}
{{- if and (hasKey $own $group) (not (kindIs "map" $settings)) -}}
{{- fail (printf "service.config.%s: a map of settings is needed" $group) -}}
{{- end -}}
{{- range $key, $_ := (kindIs "map" $settings | ternary $settings dict) -}}
{{- with get (get $own $group | default dict) $key }}{{ fail (printf "service.config.%s.%s: not here: %s" $group $key .) }}{{ end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The whole of config.yaml: what follows from the values, and service.config over it. JSON is YAML, and the only
way in which Go's templates do not write 1000000 as 1e+06. */}}
{{- define "gpucost.config" -}}
{{- include "gpucost.checkConfig" . -}}
{{- $v := .Values -}}
{{- $found := dict
  "ledger" (include "gpucost.ledgerConfig" . | fromJson)
  "prometheus" (include "gpucost.prometheusConfig" . | fromJson)
  "api" (dict "host" "0.0.0.0" "port" 8080 "auth" "required" "drain" "5s")
  "log" (dict "format" "json")
  "detectors" (dict "state" ($v.service.watchCluster | ternary "in-cluster" "none")) -}}
{{- if $v.service.tls.secret -}}
{{- $_ := set $found.api "tls_cert_file" (include "gpucost.secretFile" (dict "name" "api-tls" "key" "tls.crt")) -}}
{{- $_ := set $found.api "tls_key_file" (include "gpucost.secretFile" (dict "name" "api-tls" "key" "tls.key")) -}}
{{- end -}}
{{- if $v.service.priceBook }}{{ $_ := set $found "pricing" (dict "book" "/etc/gpucost/config/prices.yaml") }}{{ end -}}
{{- if $v.service.teamRules }}{{ $_ := set $found "teams" (dict "rules" "/etc/gpucost/config/teams.yaml") }}{{ end -}}
{{- if $v.service.chargePolicy }}{{ $_ := set $found "charges" (dict "policy" "/etc/gpucost/config/policy.yaml") }}{{ end -}}
{{- if $v.webhook.enabled }}{{ $_ := set $found "webhook" (include "gpucost.webhookConfig" . | fromJson) }}{{ end -}}
{{- $access := dict -}}
{{- with $v.access.oidc.issuer }}{{ $_ := set $access "oidc" (dict "issuer" . "audience" $v.access.oidc.audience) }}{{ end -}}
{{- if $v.access.kubernetes.enabled }}{{ $_ := set $access "kubernetes" (dict "enabled" true) }}{{ end -}}
{{- with $v.access.grants }}{{ $_ := set $access "grants" . }}{{ end -}}
{{- with $access }}{{ $_ := set $found "access" . }}{{ end -}}
{{- $notify := dict -}}
{{- with $v.monitoring.rules.runbooksUrl }}{{ $_ := set $notify "runbooks_url" . }}{{ end -}}
{{- with $v.monitoring.dashboards.grafanaUrl }}{{ $_ := set $notify "dashboards_url" . }}{{ end -}}
{{- with $notify }}{{ $_ := set $found "notify" . }}{{ end -}}
{{- $advisor := dict -}}
{{- with $v.service.schedulers.kueue }}{{ if .enabled }}{{ $_ := set $advisor "kueue" (dict
  "config" (printf "%s/%s" .namespace .configMap) "manager" (printf "%s/%s" .namespace .deployment)) }}{{ end }}{{ end -}}
{{- with $v.service.schedulers.volcano }}{{ if .enabled }}{{ $_ := set $advisor "volcano" (dict
  "config" (printf "%s/%s" .namespace .configMap) "scheduler" (printf "%s/%s" .namespace .deployment)) }}{{ end }}{{ end -}}
{{- with $advisor }}{{ $_ := set $found "advisor" . }}{{ end -}}
{{- mergeOverwrite $found (deepCopy ($v.service.config | default dict)) | toPrettyJson -}}
{{- end -}}

{{/* Settings that a service cannot take while it runs (gpucost.service.wiring.configuration): a change makes a new pod. */}}
{{- define "gpucost.startConfig" -}}
{{- $c := include "gpucost.config" . | fromJson -}}
{{- dict
  "api" (pick $c.api "host" "port" "tls_cert_file" "tls_key_file")
  "log" (pick $c.log "format")
  "ledger" (pick $c.ledger "url" "url_file")
  "webhook" (get $c "webhook") | toJson -}}
{{- end -}}

{{- define "gpucost.serviceUsesToken" -}}
{{- $v := .Values -}}
{{- or $v.service.watchCluster $v.access.kubernetes.enabled (and $v.webhook.enabled (eq $v.webhook.certificates "managed")) -}}
{{- end -}}

{{/* A container that works on the ledger alone: it needs its URL, and no other setting. */}}
{{- define "gpucost.ledgerContainer" -}}
name: {{ .name }}
image: {{ include "gpucost.image" (dict "root" .root "image" .root.Values.service.image) }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
command: {{ .command | toJson }}
env:
  {{- $ledger := include "gpucost.ledgerConfig" .root | fromJson }}
  {{- range $key, $value := $ledger }}
  - name: GPUCOST_LEDGER__{{ upper $key }}
    value: {{ $value | quote }}
  {{- end }}
resources:
  {{- toYaml .root.Values.migrations.resources | nindent 2 }}
securityContext:
  {{- include "gpucost.containerSecurityContext" . | nindent 2 }}
volumeMounts:
  - {name: tmp, mountPath: /tmp}
  {{- if eq .root.Values.ledger.kind "postgresql" }}
  - {name: secret-ledger, mountPath: /etc/gpucost/secrets/ledger, readOnly: true}
  {{- else }}
  - {name: ledger, mountPath: /var/lib/gpucost}
  {{- end }}
{{- end -}}
