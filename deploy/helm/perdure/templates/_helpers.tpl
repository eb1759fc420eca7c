{{- define "perdure.fullname" -}}
{{- if contains "perdure" .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{ else }}{{ printf "%s-perdure" .Release.Name | trunc 40 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "perdure.image" -}}
{{- with .Values.image }}{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}{{ end }}
{{- end }}

{{/* The labels that find the pods of a component; called with a list of the root and its name. */}}
{{- define "perdure.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: perdure
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- define "perdure.labels" -}}
{{- $root := index . 0 -}}
{{ include "perdure.selector" . }}
app.kubernetes.io/part-of: perdure
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version }}
{{- end }}

{{/* The variables of every process that are no secrets, as a map. */}}
{{- define "perdure.config" -}}
{{- $values := .Values -}}
{{- $config := dict
  "TEMPORAL_ADDRESS" $values.temporal.address
  "TEMPORAL_NAMESPACE" $values.temporal.namespace
  "PERDURE_AGENTS" $values.agents
  "PERDURE_TASK_QUEUE" $values.taskQueue
  "PERDURE_SHUTDOWN_GRACE" ($values.shutdownGraceSeconds | toString)
  "PERDURE_METRICS_ADDRESS" "0.0.0.0:9464" -}}
{{- if $values.migrate.enabled }}{{ $_ := set $config "PERDURE_MIGRATE" "off" }}{{ end -}}
{{- if eq $values.temporal.auth "mtls" -}}
{{- $_ := set $config "TEMPORAL_TLS" "true" -}}
{{- $_ := set $config "TEMPORAL_TLS_CLIENT_CERT_PATH" "/etc/perdure/temporal/tls.crt" -}}
{{- $_ := set $config "TEMPORAL_TLS_CLIENT_KEY_PATH" "/etc/perdure/temporal/tls.key" -}}
{{- end -}}
{{- $secrets := list "PERDURE_STORE_URL" "PERDURE_KEY_STORE_URL" "PERDURE_LISTEN_URL" "PERDURE_ENCRYPTION_KEYS" "PERDURE_GATEWAY_TOKENS" "PERDURE_A2A_SIGNING_KEY" "TEMPORAL_API_KEY" -}}
{{- range $name, $value := $values.config -}}
{{- if has $name $secrets }}{{ fail (printf "config.%s is a secret; put it into a Secret that existingSecret names" $name) }}{{ end -}}
{{- if hasKey $config $name }}{{ fail (printf "config.%s has a value of its own in values.yaml; set that one" $name) }}{{ end -}}
{{- $_ := set $config $name ($value | toString) -}}
{{- end -}}
{{ toYaml $config }}
{{- end }}

{{/*
The pod of a component. Called with a dict of
root, component, command (list), secrets (names of secrets that are variables), tokens (name of the secret with the gateway's),
env and extraEnv (lists), ports, probes (YAML), resources, config ("map" or "inline"): hooks run before the ConfigMap is there.
*/}}
{{- define "perdure.pod" -}}
{{- $root := .root }}{{ $values := $root.Values -}}
{{- $env := concat (list (dict "name" "HOME" "value" "/tmp")) (.env | default list) -}}
{{- if eq .config "inline" -}}
{{- range $name, $value := include "perdure.config" $root | fromYaml }}{{ $env = append $env (dict "name" $name "value" $value) }}{{ end -}}
{{- end -}}
{{- if eq $values.temporal.auth "apiKey" -}}
{{- $ref := dict "name" $values.temporal.existingSecret "key" "api-key" -}}
{{- $env = append $env (dict "name" "TEMPORAL_API_KEY" "valueFrom" (dict "secretKeyRef" $ref)) -}}
{{- end -}}
{{- if .tokens }}{{ $env = append $env (dict "name" "PERDURE_GATEWAY_TOKENS_FILE" "value" "/etc/perdure/gateway/tokens") }}{{ end -}}
{{- $env = concat $env $values.extraEnv (.extraEnv | default list) -}}
metadata:
  labels:
    {{- include "perdure.selector" (list $root .component) | nindent 4 }}
    app.kubernetes.io/part-of: perdure
    {{- with $values.podLabels }}{{ toYaml . | nindent 4 }}{{ end }}
  {{- $annotations := deepCopy $values.podAnnotations }}
  {{- if eq .config "map" }}{{ $_ := set $annotations "checksum/config" (include "perdure.config" $root | sha256sum) }}{{ end }}
  {{- with $annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  {{- if eq .config "map" }}
  serviceAccountName: {{ include "perdure.fullname" $root }}
  {{- end }}
  automountServiceAccountToken: false
  enableServiceLinks: false
  {{- if .restartPolicy }}
  restartPolicy: {{ .restartPolicy }}
  {{- else }}
  terminationGracePeriodSeconds: {{ add $values.shutdownGraceSeconds 10 }}
  topologySpreadConstraints:
    - maxSkew: 1
      topologyKey: kubernetes.io/hostname
      whenUnsatisfiable: ScheduleAnyway
      labelSelector:
        matchLabels:
          {{- include "perdure.selector" (list $root .component) | nindent 10 }}
  {{- end }}
  {{- with $values.image.pullSecrets }}
  imagePullSecrets:
    {{- range . }}
    - name: {{ . }}
    {{- end }}
  {{- end }}
  securityContext:
    runAsNonRoot: true
    runAsUser: 10001
    runAsGroup: 10001
    fsGroup: 10001
    seccompProfile:
      type: RuntimeDefault
  containers:
    - name: {{ .component }}
      image: {{ include "perdure.image" $root | quote }}
      imagePullPolicy: {{ $values.image.pullPolicy }}
      command:
        {{- toYaml .command | nindent 8 }}
      envFrom:
        {{- if eq .config "map" }}
        - configMapRef:
            name: {{ include "perdure.fullname" $root }}
        {{- end }}
        {{- range .secrets }}
        {{- if . }}
        - secretRef:
            name: {{ . }}
        {{- end }}
        {{- end }}
      env:
        {{- toYaml $env | nindent 8 }}
      {{- with .ports }}
      ports:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with .probes }}
      {{- . | nindent 6 }}
      {{- end }}
      {{- with .preStopSeconds }}
      # Until load balancers know that this pod goes, it answers.
      lifecycle:
        preStop:
          sleep: { seconds: {{ . }} }
      {{- end }}
      {{- with .resources }}
      resources:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      securityContext:
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities:
          drop: [ALL]
      volumeMounts:
        - name: tmp
          mountPath: /tmp
        {{- if .tokens }}
        # The directory and not the file, so that a changed Secret arrives.
        - name: gateway-tokens
          mountPath: /etc/perdure/gateway
          readOnly: true
        {{- end }}
        {{- if eq $values.temporal.auth "mtls" }}
        - name: temporal-client
          mountPath: /etc/perdure/temporal
          readOnly: true
        {{- end }}
        {{- with $values.extraVolumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
  volumes:
    - name: tmp
      emptyDir:
        sizeLimit: 1Gi
    {{- with .tokens }}
    - name: gateway-tokens
      secret:
        secretName: {{ . }}
        defaultMode: 0440
    {{- end }}
    {{- if eq $values.temporal.auth "mtls" }}
    - name: temporal-client
      secret:
        secretName: {{ $values.temporal.existingSecret }}
        defaultMode: 0440
    {{- end }}
    {{- with $values.extraVolumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with $values.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $values.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $values.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}

{{/* Probes on a port of that name; called with a dict of port, and of how long readiness may take. */}}
{{- define "perdure.probes" -}}
startupProbe:
  httpGet: { path: /healthz, port: {{ .port }} }
  periodSeconds: 2
  timeoutSeconds: 3
  failureThreshold: 60
livenessProbe:
  httpGet: { path: /healthz, port: {{ .port }} }
  periodSeconds: 10
  timeoutSeconds: 3
  failureThreshold: 6
readinessProbe:
  httpGet: { path: /readyz, port: {{ .port }} }
  periodSeconds: 5
  timeoutSeconds: {{ .seconds }}
  failureThreshold: 2
{{- end }}

{{/* The components that are workers, as a map of name to settings: one, or one for each role. */}}
{{- define "perdure.workers" -}}
{{- $own := list "separateRoles" "turns" "models" "tools" -}}
{{- $worker := .Values.worker -}}
{{- $common := dict -}}
{{- range $name, $value := $worker }}{{ if not (has $name $own) }}{{ $_ := set $common $name $value }}{{ end }}{{ end -}}
{{- $workers := dict -}}
{{- if $worker.separateRoles -}}
{{- range $role := list "turns" "models" "tools" -}}
{{- $_ := set $workers $role (mergeOverwrite (deepCopy $common) (deepCopy (index $worker $role)) (dict "role" $role)) -}}
{{- end -}}
{{- else }}{{ $_ := set $workers "worker" $common }}{{ end -}}
{{ toYaml $workers }}
{{- end }}

{{/* The task queues of a component with what waits in them, as a map; each key whose rate is limited has one of its own. */}}
{{- define "perdure.queues" -}}
{{- $values := (index . 0).Values }}{{ $component := index . 1 }}{{ $queue := $values.taskQueue -}}
{{- $queues := dict -}}
{{- if has $component (list "models" "tools") }}{{ $_ := set $queues (printf "%s-%s" $queue $component) "activity" -}}
{{- else }}{{ $_ := set $queues $queue "workflow,activity" }}{{ end -}}
{{- if has $component (list "worker" "models") -}}
{{- range $limit := $values.config.PERDURE_RATE_LIMITS | default "" | splitList "," | compact -}}
{{- $_ := set $queues (printf "%s-models-%s" $queue (splitList "=" $limit | first | trim)) "activity" -}}
{{- end -}}
{{- end -}}
{{ toYaml $queues }}
{{- end }}
