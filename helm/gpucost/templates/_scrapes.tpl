{{/* How exporters are scraped: their token, their certificate, and what Prometheus needs to know of both. */}}

{{- define "gpucost.scrapeName" -}}
{{- include "gpucost.fullname" (dict "root" . "component" "scrape") -}}
{{- end -}}

{{- define "gpucost.scrapeTokenSecret" -}}
{{- .Values.scrapes.token.secret | default (include "gpucost.scrapeName" .) -}}
{{- end -}}

{{/* Empty where no certificate is mounted. */}}
{{- define "gpucost.scrapeTlsSecret" -}}
{{- $tls := .Values.scrapes.tls -}}
{{- if eq (toString $tls.certificates) "existingSecret" -}}
{{- if not $tls.existingSecret }}{{ fail "scrapes.tls.existingSecret: needed where scrapes.tls.certificates is existingSecret" }}{{ end -}}
{{ $tls.existingSecret }}
{{- else if eq (toString $tls.certificates) "cert-manager" -}}
{{ include "gpucost.fullname" (dict "root" . "component" "scrape-tls") }}
{{- end -}}
{{- end -}}

{{/* By which Prometheus knows the exporters of a component. */}}
{{- define "gpucost.scrapeHost" -}}
{{- printf "%s.%s.svc" (include "gpucost.fullname" .) .root.Release.Namespace -}}
{{- end -}}

{{/* Without quotes, off is false in YAML. */}}
{{- define "gpucost.scrapeScheme" -}}
{{- has (toString .Values.scrapes.tls.certificates) (list "off" "false") | ternary "HTTP" "HTTPS" -}}
{{- end -}}

{{/* KEY -> value of an exporter's settings. */}}
{{- define "gpucost.scrapeSettings" -}}
{{- $found := dict -}}
{{- if .Values.scrapes.token.enabled -}}
{{- $_ := set $found "SCRAPE_TOKEN_FILES" "/etc/gpucost/scrapes/token/token,/etc/gpucost/scrapes/token/other" -}}
{{- else -}}
{{- $_ := set $found "SCRAPE_AUTH" "off" -}}
{{- end -}}
{{- if include "gpucost.scrapeTlsSecret" . -}}
{{- $_ := set $found "TLS_CERT_FILE" "/etc/gpucost/scrapes/tls/tls.crt" -}}
{{- $_ := set $found "TLS_KEY_FILE" "/etc/gpucost/scrapes/tls/tls.key" -}}
{{- else if eq (include "gpucost.scrapeScheme" .) "HTTPS" -}}
{{- $_ := set $found "TLS_SELF_SIGNED" "true" -}}
{{- end -}}
{{- toJson $found -}}
{{- end -}}

{{- define "gpucost.scrapeMounts" -}}
{{- if .Values.scrapes.token.enabled }}
- {name: scrape-token, mountPath: /etc/gpucost/scrapes/token, readOnly: true}
{{- end }}
{{- if include "gpucost.scrapeTlsSecret" . }}
- {name: scrape-tls, mountPath: /etc/gpucost/scrapes/tls, readOnly: true}
{{- end }}
{{- end -}}

{{/* The token's key must be there, so that no pod starts before it is; the other may be missing. */}}
{{- define "gpucost.scrapeVolumes" -}}
{{- if .Values.scrapes.token.enabled }}
- name: scrape-token
  projected:
    defaultMode: 0440
    sources:
      - secret:
          name: {{ include "gpucost.scrapeTokenSecret" . }}
          items: [{key: {{ .Values.scrapes.token.key | quote }}, path: token}]
      - secret:
          name: {{ include "gpucost.scrapeTokenSecret" . }}
          items: [{key: {{ .Values.scrapes.token.otherKey | quote }}, path: other}]
          optional: true
{{- end }}
{{- with include "gpucost.scrapeTlsSecret" . }}
- name: scrape-tls
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end }}
{{- end -}}

{{/* What an endpoint of a monitor says beside its port; takes the dict of a component. */}}
{{- define "gpucost.scrapeEndpoint" -}}
{{- if eq (include "gpucost.scrapeScheme" .root) "HTTPS" }}
scheme: https
tlsConfig:
  {{- with include "gpucost.scrapeTlsSecret" .root }}
  serverName: {{ include "gpucost.scrapeHost" $ }}
  ca:
    secret: {name: {{ . }}, key: ca.crt, optional: true}
  {{- else }}
  # Certificates that exporters make for themselves: nobody reads along, and who answers is not checked.
  insecureSkipVerify: true
  {{- end }}
{{- end }}
{{- if .root.Values.scrapes.token.enabled }}
authorization:
  type: Bearer
  credentials: {name: {{ include "gpucost.scrapeTokenSecret" .root }}, key: {{ .root.Values.scrapes.token.key | quote }}}
{{- end }}
{{- end -}}
