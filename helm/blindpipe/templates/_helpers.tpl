{{/* The name of all objects of the release. */}}
{{- define "blindpipe.name" -}}
{{- .Values.fullnameOverride | default .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{/* Labels that select pods; they never change. Argument: list of root and component. */}}
{{- define "blindpipe.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: blindpipe
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{- define "blindpipe.labels" -}}
{{- $root := index . 0 -}}
{{ include "blindpipe.selector" . }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version }}
{{- end -}}

{{- define "blindpipe.metadata" -}}
{{- $root := index . 0 -}}
name: {{ include "blindpipe.name" $root }}{{ if gt (len .) 2 }}-{{ index . 2 }}{{ end }}
namespace: {{ $root.Release.Namespace }}
labels:
  {{- include "blindpipe.labels" . | nindent 2 }}
{{- end -}}

{{- define "blindpipe.image" -}}
{{- $image := .Values.image -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ $image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{/* The host of publicUrl, without a port. */}}
{{- define "blindpipe.host" -}}
{{- regexReplaceAll ":[0-9]+$" (trimPrefix "https://" .Values.publicUrl) "" -}}
{{- end -}}

{{- define "blindpipe.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (include "blindpipe.name" .) -}}
{{- end -}}

{{/* Whether more than one pod may use the store of files. */}}
{{- define "blindpipe.severalPods" -}}
{{- $v := .Values -}}
{{- if or (gt (int $v.replicas) 1) $v.hpa.enabled $v.keda.enabled $v.worker.enabled -}}true{{- end -}}
{{- end -}}

{{- define "blindpipe.replicasAreScaled" -}}
{{- if or .Values.hpa.enabled .Values.keda.enabled -}}true{{- end -}}
{{- end -}}

{{/* The sum of the waits before the drain, and the 30 s that it may take. */}}
{{- define "blindpipe.graceSeconds" -}}
{{- add (int .Values.drain.preStopSeconds) (int .Values.drain.lagSeconds) 30 -}}
{{- end -}}

{{/* Refuses values that would start pods that cannot work. All faults at once. */}}
{{- define "blindpipe.check" -}}
{{- $v := .Values -}}
{{- $faults := list -}}
{{- if and $v.migrate.enabled (not $v.secrets.owner) -}}
{{- $faults = append $faults "secrets.owner: the migration needs the secret of the schema's owner, or set migrate.enabled=false" -}}
{{- end -}}
{{- if and $v.erase.enabled (not $v.secrets.eraser) -}}
{{- $faults = append $faults "secrets.eraser: the erasure needs the secret of its role, or set erase.enabled=false and run it yourself" -}}
{{- end -}}
{{- if not (or $v.tls.secret $v.trustedProxies) -}}
{{- $faults = append $faults "tls.secret or trustedProxies: without one of them every request is refused as not TLS" -}}
{{- end -}}
{{- if and $v.proxyProtocolFrom (not $v.tls.secret) -}}
{{- $faults = append $faults "proxyProtocolFrom: needs tls.secret, because such a balancer does not terminate TLS" -}}
{{- end -}}
{{- if and $v.ingress.enabled (not $v.trustedProxies) -}}
{{- $faults = append $faults "trustedProxies: name the networks of the ingress controller, or all clients share one address in the limits" -}}
{{- end -}}
{{- if and $v.gateway.enabled $v.tls.secret -}}
{{- $faults = append $faults "gateway.enabled: an HTTPRoute reaches nodes without TLS; leave tls.secret empty" -}}
{{- end -}}
{{- if and $v.gateway.enabled (not $v.gateway.parentRefs) -}}
{{- $faults = append $faults "gateway.parentRefs: name the gateway" -}}
{{- end -}}
{{- if and $v.objectStore.url $v.objectStore.volume.enabled -}}
{{- $faults = append $faults "objectStore: give a bucket or a volume, not both" -}}
{{- end -}}
{{- if not (or $v.objectStore.url $v.objectStore.volume.enabled) -}}
{{- $faults = append $faults "objectStore: give a bucket (objectStore.url) or a volume (objectStore.volume.enabled)" -}}
{{- end -}}
{{- if and $v.objectStore.volume.enabled (ne $v.objectStore.volume.accessMode "ReadWriteMany") (include "blindpipe.severalPods" .) -}}
{{- $faults = append $faults "objectStore.volume.accessMode: several pods must share the files: use a bucket, a ReadWriteMany volume, or one replica without worker, hpa and keda" -}}
{{- end -}}
{{- if and $v.objectStore.direct (not $v.objectStore.url) -}}
{{- $faults = append $faults "objectStore.direct: a volume signs no addresses" -}}
{{- end -}}
{{- if and $v.loadTest.enabled (not $v.loadTest.image) -}}
{{- $faults = append $faults "loadTest.image: where is your build of `make image-loadtest`?" -}}
{{- end -}}
{{- if and $v.loadTest.enabled (not $v.secrets.owner) -}}
{{- $faults = append $faults "secrets.owner: the load test needs the schema's owner to remove the rows of its accounts" -}}
{{- end -}}
{{- if and $v.hpa.enabled $v.keda.enabled -}}
{{- $faults = append $faults "hpa.enabled and keda.enabled: choose one, both would set the number of nodes" -}}
{{- end -}}
{{- if and $v.keda.enabled (not $v.keda.prometheusUrl) -}}
{{- $faults = append $faults "keda.prometheusUrl: KEDA counts the sockets there" -}}
{{- end -}}
{{- if and (ne $v.redis.mode "url") (not $v.redis.hosts) -}}
{{- $faults = append $faults "redis.hosts: name them, or set redis.mode=url" -}}
{{- end -}}
{{- if and (eq $v.redis.mode "single") (gt (len $v.redis.hosts) 1) -}}
{{- $faults = append $faults "redis.hosts: redis.mode=single has one host" -}}
{{- end -}}
{{- if and $v.database.pgbouncer.enabled (not (and $v.database.host $v.database.pgbouncer.host)) -}}
{{- $faults = append $faults "database.pgbouncer: needs database.host and database.pgbouncer.host" -}}
{{- end -}}
{{- if and (eq $v.service.type "ClusterIP") $v.service.externalTrafficPolicy -}}
{{- $faults = append $faults "service.externalTrafficPolicy: a ClusterIP service has none" -}}
{{- end -}}
{{- if and .Values.networkPolicy.enabled .Values.serviceMonitor.enabled (not .Values.networkPolicy.monitoring) -}}
{{- $faults = append $faults "networkPolicy.monitoring: name the pods of Prometheus, because serviceMonitor.enabled asks it to scrape" -}}
{{- end -}}
{{- range $name, $peer := .Values.networkPolicy.peers -}}
{{- if and $.Values.networkPolicy.enabled $peer.to (not $peer.ports) (ne $name "tracing") -}}
{{- $faults = append $faults (printf "networkPolicy.peers.%s.ports: a rule without ports would admit all of them" $name) -}}
{{- end -}}
{{- end -}}
{{- if $faults -}}
{{- fail (printf "\n  %s\n" (join "\n  " $faults)) -}}
{{- end -}}
{{- end -}}
