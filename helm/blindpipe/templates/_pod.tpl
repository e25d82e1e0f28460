{{/* REDIS_URL, made of the values. */}}
{{- define "blindpipe.redisUrl" -}}
{{- $r := .Values.redis -}}
{{- $scheme := ternary "rediss" "redis" $r.tls -}}
{{- if ne $r.mode "single" }}{{ $scheme = printf "%s-%s" $scheme $r.mode }}{{ end -}}
{{- $who := ternary (printf "%s:$(REDIS_PASSWORD)@" $r.user) "" $r.auth -}}
{{- $parts := list -}}
{{- if eq $r.mode "sentinel" }}{{ $parts = append $parts (printf "sentinelServiceName=%s" $r.sentinelService) }}{{ end -}}
{{- if and (eq $r.mode "sentinel") $r.sentinelAuth }}{{ $parts = append $parts "sentinelPassword=$(REDIS_SENTINEL_PASSWORD)" }}{{ end -}}
{{- range rest $r.hosts }}{{ $parts = append $parts (printf "node=%s" .) }}{{ end -}}
{{ $scheme }}://{{ $who }}{{ first $r.hosts }}{{ if $parts }}?{{ join "&" $parts }}{{ end }}
{{- end -}}

{{/* A Postgres URL. Arguments: root, role, name of the password's variable, whether through PgBouncer. */}}
{{- define "blindpipe.postgresUrl" -}}
{{- $d := (index . 0).Values.database -}}
{{- $at := printf "%s:%d" $d.host (int $d.port) -}}
{{- if index . 3 }}{{ $at = printf "%s:%d" $d.pgbouncer.host (int $d.pgbouncer.port) }}{{ end -}}
postgres://{{ index . 1 }}:$({{ index . 2 }})@{{ $at }}/{{ $d.name }}?sslmode={{ $d.sslmode }}
{{- end -}}

{{/* A variable from a secret. Arguments: name of the secret, key. */}}
{{- define "blindpipe.secretEnv" -}}
- name: {{ index . 1 }}
  valueFrom:
    secretKeyRef:
      name: {{ index . 0 }}
      key: {{ index . 1 }}
{{ end -}}

{{/* The serving role's DATABASE_URL. */}}
{{- define "blindpipe.databaseEnv" -}}
{{- $v := .Values -}}
{{- if $v.database.host -}}
{{ include "blindpipe.secretEnv" (list $v.secrets.nodes "DATABASE_PASSWORD") -}}
- name: DATABASE_URL
  value: {{ include "blindpipe.postgresUrl" (list . $v.database.user "DATABASE_PASSWORD" $v.database.pgbouncer.enabled) | quote }}
{{ else -}}
{{ include "blindpipe.secretEnv" (list $v.secrets.nodes "DATABASE_URL") -}}
{{- end -}}
{{- end -}}

{{/* The owner's MIGRATE_DATABASE_URL. */}}
{{- define "blindpipe.ownerEnv" -}}
{{- $v := .Values -}}
{{- if $v.database.host -}}
{{ include "blindpipe.secretEnv" (list $v.secrets.owner "MIGRATE_DATABASE_PASSWORD") -}}
- name: MIGRATE_DATABASE_URL
  value: {{ include "blindpipe.postgresUrl" (list . $v.database.owner "MIGRATE_DATABASE_PASSWORD" false) | quote }}
{{ else -}}
{{ include "blindpipe.secretEnv" (list $v.secrets.owner "MIGRATE_DATABASE_URL") -}}
{{- end -}}
{{- end -}}

{{/* The ERASE_DATABASE_URL of the role that erases. */}}
{{- define "blindpipe.eraserEnv" -}}
{{- $v := .Values -}}
{{- if $v.database.host -}}
{{ include "blindpipe.secretEnv" (list $v.secrets.eraser "ERASE_DATABASE_PASSWORD") -}}
- name: ERASE_DATABASE_URL
  value: {{ include "blindpipe.postgresUrl" (list . $v.database.eraser "ERASE_DATABASE_PASSWORD" false) | quote }}
{{ else -}}
{{ include "blindpipe.secretEnv" (list $v.secrets.eraser "ERASE_DATABASE_URL") -}}
{{- end -}}
{{- end -}}

{{/* The settings of a node, and the owner's URL, for the end of a load test's accounts. */}}
{{- define "blindpipe.accountsEnv" -}}
{{ include "blindpipe.ownerEnv" . -}}
{{ include "blindpipe.env" (list . "load-test") }}
{{- end -}}

{{/* Variables of every container. */}}
{{- define "blindpipe.commonEnv" -}}
{{- if .Values.caBundle.configMap -}}
# The authorities that TLS connections of the pod trust.
- name: SSL_CERT_FILE
  value: /etc/blindpipe/ca/{{ .Values.caBundle.key }}
{{ end -}}
{{- with .Values.extraEnv }}{{ toYaml . }}{{ end -}}
{{- end -}}

{{/* The settings of a node or a worker. Arguments: root, component. */}}
{{- define "blindpipe.env" -}}
{{- $root := index . 0 -}}
{{- $v := $root.Values -}}
{{- $origins := $v.webOrigins | default (list $v.publicUrl) -}}
- name: NODE_NAME
  valueFrom:
    fieldRef:
      fieldPath: metadata.name
- name: LISTEN_ADDR
  value: 0.0.0.0:8443
# A pod's loopback is out of reach for the kubelet. No service exposes this port beyond the cluster.
- name: ADMIN_ADDR
  value: 0.0.0.0:9090
- name: PUBLIC_URL
  value: {{ $v.publicUrl | quote }}
- name: ALLOWED_ORIGINS
  value: {{ join "," $origins | quote }}
- name: RP_ID
  value: {{ $v.passkeys.domain | default (include "blindpipe.host" $root) | quote }}
- name: RP_ORIGIN
  value: {{ join "," ($v.passkeys.origins | default $origins) | quote }}
- name: MAIL_FROM
  value: {{ $v.mail.from | quote }}
- name: DRAIN_LAG_SECONDS
  value: {{ $v.drain.lagSeconds | quote }}
- name: WEBHOOK_WORKER
  value: {{ or (eq (index . 1) "worker") (not $v.worker.enabled) | quote }}
{{ if $v.app.enabled -}}
- name: APP_DIR
  value: /usr/local/share/blindpipe/app
{{ end -}}
{{ if $v.trustedProxies -}}
- name: TRUSTED_PROXIES
  value: {{ join "," $v.trustedProxies | quote }}
{{ end -}}
{{ if $v.proxyProtocolFrom -}}
- name: PROXY_PROTOCOL_FROM
  value: {{ join "," $v.proxyProtocolFrom | quote }}
{{ end -}}
{{- if $v.tls.secret -}}
- name: TLS_CERT_FILE
  value: /etc/blindpipe/tls/tls.crt
- name: TLS_KEY_FILE
  value: /etc/blindpipe/tls/tls.key
{{ end -}}
{{- with $v.objectStore -}}
- name: OBJECT_STORE_URL
  value: {{ .url | default "file:///var/lib/blindpipe/objects" | quote }}
{{ if .url -}}
{{ if .endpoint -}}
- name: OBJECT_STORE_ENDPOINT
  value: {{ .endpoint | quote }}
{{ end -}}
{{ if hasPrefix "s3:" .url -}}
- name: OBJECT_STORE_REGION
  value: {{ .region | quote }}
{{ end -}}
{{ if .accessKey -}}
- name: OBJECT_STORE_ACCESS_KEY
  value: {{ .accessKey | quote }}
{{ end -}}
- name: OBJECT_STORE_DIRECT
  value: {{ .direct | quote }}
{{ end -}}
{{- end -}}
{{- if and $v.objectStore.url $v.objectStore.hasSecret -}}
{{ include "blindpipe.secretEnv" (list $v.secrets.nodes "OBJECT_STORE_SECRET") -}}
{{- end -}}
{{- with $v.tracing -}}
{{- if .endpoint -}}
- name: OTEL_EXPORTER_OTLP_ENDPOINT
  value: {{ .endpoint | quote }}
- name: TRACE_SAMPLE_RATIO
  value: {{ .sampleRatio | quote }}
- name: TRACE_TRUST_CALLERS
  value: {{ .trustCallers | quote }}
{{ end -}}
{{- end -}}
{{- if and $v.tracing.endpoint $v.tracing.hasHeaders -}}
{{ include "blindpipe.secretEnv" (list $v.secrets.nodes "OTEL_EXPORTER_OTLP_HEADERS") -}}
{{- end -}}
{{ include "blindpipe.databaseEnv" $root -}}
{{- if eq $v.redis.mode "url" -}}
{{ include "blindpipe.secretEnv" (list $v.secrets.nodes "REDIS_URL") -}}
{{- else -}}
{{- if $v.redis.auth -}}
{{ include "blindpipe.secretEnv" (list $v.secrets.nodes "REDIS_PASSWORD") -}}
{{- end -}}
{{- if and (eq $v.redis.mode "sentinel") $v.redis.sentinelAuth -}}
{{ include "blindpipe.secretEnv" (list $v.secrets.nodes "REDIS_SENTINEL_PASSWORD") -}}
{{- end -}}
- name: REDIS_URL
  value: {{ include "blindpipe.redisUrl" $root | quote }}
{{ end -}}
{{- range list "MAIL_URL" "ACCESS_TOKEN_KEYS" "SERVER_SECRET" "TURNSTILE_SECRET" -}}
{{ include "blindpipe.secretEnv" (list $v.secrets.nodes .) -}}
{{- end -}}
{{- range $name, $value := $v.settings -}}
- name: {{ $name }}
  value: {{ ternary (toString (int64 $value)) (toString $value) (kindIs "float64" $value) | quote }}
{{ end -}}
{{ include "blindpipe.commonEnv" $root }}
{{- end -}}

{{- define "blindpipe.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "blindpipe.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{- define "blindpipe.mounts" -}}
{{- $v := (index . 0).Values -}}
{{- if $v.tls.secret -}}
- name: tls
  mountPath: /etc/blindpipe/tls
  readOnly: true
{{ end -}}
{{- if $v.objectStore.volume.enabled -}}
- name: objects
  mountPath: /var/lib/blindpipe/objects
{{ end -}}
{{- if $v.caBundle.configMap -}}
- name: ca
  mountPath: /etc/blindpipe/ca
  readOnly: true
{{ end -}}
{{- end -}}

{{- define "blindpipe.volumes" -}}
{{- $root := index . 0 -}}
{{- $v := $root.Values -}}
{{- if $v.tls.secret -}}
- name: tls
  secret:
    secretName: {{ $v.tls.secret }}
    # Readable for the group, which fsGroup makes the pod's.
    defaultMode: 0440
{{ end -}}
{{- if $v.objectStore.volume.enabled -}}
- name: objects
  persistentVolumeClaim:
    claimName: {{ $v.objectStore.volume.existingClaim | default (printf "%s-objects" (include "blindpipe.name" $root)) }}
{{ end -}}
{{- if $v.caBundle.configMap -}}
- name: ca
  configMap:
    name: {{ $v.caBundle.configMap }}
{{ end -}}
{{- end -}}

{{/* Where pods go, and their image's credentials. */}}
{{- define "blindpipe.placement" -}}
{{- $v := .Values -}}
{{- with $v.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- with $v.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with $v.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $v.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $v.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* A deployment. Arguments: root, component, the subcommand, number of pods (or none), resources. */}}
{{- define "blindpipe.deployment" -}}
{{- $root := index . 0 -}}
{{- $component := index . 1 -}}
{{- $v := $root.Values -}}
{{- $isNode := eq $component "node" -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  {{- include "blindpipe.metadata" (ternary (list $root $component) (list $root $component $component) $isNode) | nindent 2 }}
spec:
  {{- if not (kindIs "invalid" (index . 3)) }}
  replicas: {{ index . 3 }}
  {{- end }}
  revisionHistoryLimit: 5
  selector:
    matchLabels:
      {{- include "blindpipe.selector" (list $root $component) | nindent 6 }}
  strategy:
    {{- if and $v.objectStore.volume.enabled (ne $v.objectStore.volume.accessMode "ReadWriteMany") }}
    # The volume follows the only pod.
    type: Recreate
    {{- else }}
    type: RollingUpdate
    rollingUpdate:
      maxSurge: 1
      maxUnavailable: 0
    {{- end }}
  template:
    metadata:
      labels:
        {{- include "blindpipe.labels" (list $root $component) | nindent 8 }}
        # Selects the pods that have an admin port.
        blindpipe/admin: "true"
        {{- with $v.podLabels }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      annotations:
        # A changed secret restarts the pods at the next upgrade.
        checksum/secrets: {{ include "blindpipe.secretsChecksum" $root }}
        {{- with $v.podAnnotations }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
    spec:
      serviceAccountName: {{ include "blindpipe.serviceAccount" $root }}
      automountServiceAccountToken: false
      enableServiceLinks: false
      terminationGracePeriodSeconds: {{ include "blindpipe.graceSeconds" $root }}
      securityContext:
        {{- include "blindpipe.podSecurity" $root | nindent 8 }}
      {{- with include "blindpipe.placement" $root | trim }}
      {{- . | nindent 6 }}
      {{- end }}
      topologySpreadConstraints:
        {{- if $v.topologySpreadConstraints }}
        {{- toYaml $v.topologySpreadConstraints | nindent 8 }}
        {{- else }}
        {{- range list "topology.kubernetes.io/zone" "kubernetes.io/hostname" }}
        - topologyKey: {{ . }}
          maxSkew: 1
          whenUnsatisfiable: ScheduleAnyway
          matchLabelKeys: [pod-template-hash]
          labelSelector:
            matchLabels:
              {{- include "blindpipe.selector" (list $root $component) | nindent 14 }}
        {{- end }}
        {{- end }}
      containers:
        - name: {{ $component }}
          image: {{ include "blindpipe.image" $root | quote }}
          imagePullPolicy: {{ $v.image.pullPolicy }}
          args: [{{ index . 2 }}]
          env:
            {{- include "blindpipe.env" (list $root $component) | trim | nindent 12 }}
          ports:
            {{- if $isNode }}
            - name: public
              containerPort: 8443
            {{- end }}
            - name: admin
              containerPort: 9090
          # A node starts in seconds; it waits for nothing but Postgres.
          startupProbe:
            httpGet: {path: /health/live, port: admin}
            periodSeconds: 2
            timeoutSeconds: 2
            failureThreshold: 30
          livenessProbe:
            httpGet: {path: /health/live, port: admin}
            periodSeconds: 10
            timeoutSeconds: 5
            failureThreshold: 3
          # Ready while Postgres answers and no drain has begun; a Redis that is away changes nothing.
          readinessProbe:
            httpGet: {path: /health/ready, port: admin}
            periodSeconds: 5
            timeoutSeconds: 4
            failureThreshold: 2
          {{- if and (gt (int $v.drain.preStopSeconds) 0) (semverCompare ">=1.30.0-0" $root.Capabilities.KubeVersion.Version) }}
          lifecycle:
            preStop:
              sleep:
                seconds: {{ $v.drain.preStopSeconds }}
          {{- end }}
          securityContext:
            {{- include "blindpipe.containerSecurity" $root | nindent 12 }}
          resources:
            {{- toYaml (index . 4) | nindent 12 }}
          {{- with include "blindpipe.mounts" (list $root) | trim }}
          volumeMounts:
            {{- . | nindent 12 }}
          {{- end }}
      {{- with include "blindpipe.volumes" (list $root) | trim }}
      volumes:
        {{- . | nindent 8 }}
      {{- end }}
{{- end -}}

{{/* A hash of the secrets as they are in the cluster; `helm template` does not see them. */}}
{{- define "blindpipe.secretsChecksum" -}}
{{- $seen := list -}}
{{- $ns := .Release.Namespace -}}
{{- range list .Values.secrets.nodes .Values.tls.secret -}}
{{- if . }}{{ $seen = append $seen (dig "data" dict (lookup "v1" "Secret" $ns .)) }}{{ end -}}
{{- end -}}
{{- with .Values.caBundle.configMap }}{{ $seen = append $seen (dig "data" dict (lookup "v1" "ConfigMap" $ns .)) }}{{ end -}}
{{ toJson $seen | sha256sum }}
{{- end -}}
