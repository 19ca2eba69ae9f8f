{{- define "tig.prefix" -}}
{{- default .Release.Name .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "tig.gateway" -}}{{ include "tig.prefix" . }}-gateway{{- end -}}
{{- define "tig.triton" -}}{{ include "tig.prefix" . }}-triton{{- end -}}

{{/* Labels of selectors: they must never change. Give: (list . "gateway") */}}
{{- define "tig.selector" -}}
{{- $top := index . 0 -}}
app.kubernetes.io/name: {{ $top.Chart.Name }}
app.kubernetes.io/instance: {{ $top.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{- define "tig.labels" -}}
{{- $top := index . 0 -}}
{{ include "tig.selector" . }}
app.kubernetes.io/version: {{ $top.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $top.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $top.Chart.Name $top.Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "tig.profile" -}}
{{- get .Values.profiles .Values.profile | toYaml -}}
{{- end -}}

{{/* A value as an environment variable: Helm's numbers are floats, and 2147483648 must not become 2.147483648e+09. */}}
{{- define "tig.text" -}}
{{- if and (kindIs "float64" .) (eq (floor .) .) -}}{{ printf "%.0f" . }}{{- else -}}{{ . }}{{- end -}}
{{- end -}}

{{/* Images in flight of each gateway: 16 for each core of all Tritons and 128 for each GPU, as gateway/capacity.py has them. */}}
{{- define "tig.inFlight" -}}
{{- $profile := include "tig.profile" . | fromYaml -}}
{{- $resources := .Values.triton.resources | default $profile.tritonResources -}}
{{- $cpu := dig "requests" "cpu" (dig "limits" "cpu" "1" $resources) $resources | toString -}}
{{- $cores := ternary (divf (trimSuffix "m" $cpu | float64) 1000) (float64 $cpu) (hasSuffix "m" $cpu) -}}
{{- $gpus := dig "limits" "nvidia.com/gpu" 0 $resources | float64 -}}
{{- $tritons := ternary .Values.triton.autoscaling.maxReplicas .Values.triton.replicas .Values.triton.autoscaling.enabled -}}
{{- $gateways := ternary .Values.gateway.autoscaling.maxReplicas .Values.gateway.replicas .Values.gateway.autoscaling.enabled -}}
{{- $images := divf (mulf (addf (mulf 16 $cores) (mulf 128 $gpus)) (float64 $tritons)) (float64 (max 1 (int $gateways))) -}}
{{- max 32 (mul 8 (int (ceil (divf $images 8)))) -}}
{{- end -}}

{{/* Every GATEWAY_ variable: the chart's own, over the values', over the profile's. */}}
{{- define "tig.settings" -}}
{{- /* Not merge, to which false and 0 are as good as nothing. */ -}}
{{- $settings := deepCopy (include "tig.profile" . | fromYaml).settings -}}
{{- /* As Triton's --load-model=*: what could not be loaded is loaded as soon as it can be. */ -}}
{{- $_ := set $settings "GATEWAY_LOAD_MODELS" "*" -}}
{{- $inFlight := include "tig.inFlight" . | int -}}
{{- $_ := set $settings "GATEWAY_MAX_IMAGES_IN_FLIGHT" $inFlight -}}
{{- $_ := set $settings "GATEWAY_MAX_IMAGES_WAITING" (max 64 $inFlight) -}}
{{- range $name, $value := .Values.gateway.settings -}}{{- $_ := set $settings $name $value -}}{{- end -}}
{{- $_ := set $settings "GATEWAY_HOST" "0.0.0.0" -}}
{{- $_ := set $settings "GATEWAY_PORT" "8080" -}}
{{- $_ := set $settings "GATEWAY_LOG_FORMAT" "json" -}}
{{- $_ := set $settings "GATEWAY_TRITON_URL" (printf "%s:8001" (include "tig.triton" .)) -}}
{{- if .Values.triton.autoscaling.scaleToZero -}}
{{- $_ := set $settings "GATEWAY_HOLD_WITHOUT_TRITON" true -}}
{{- end -}}
{{- if .Values.gateway.apiKeys.secretName -}}
{{- $_ := set $settings "GATEWAY_API_KEYS_FILE" (printf "/etc/gateway/api-keys/%s" .Values.gateway.apiKeys.key) -}}
{{- end -}}
{{- if .Values.gateway.adminKeys.secretName -}}
{{- $_ := set $settings "GATEWAY_ADMIN_KEYS_FILE" (printf "/etc/gateway/admin-keys/%s" .Values.gateway.adminKeys.key) -}}
{{- end -}}
{{- toYaml $settings -}}
{{- end -}}

{{/* One number of the settings, or its default in gateway/settings.py. Give: (list . "GATEWAY_X" default) */}}
{{- define "tig.number" -}}
{{- $settings := include "tig.settings" (index . 0) | fromYaml -}}
{{- get $settings (index . 1) | default (index . 2) | float64 | ceil | printf "%.0f" -}}
{{- end -}}

{{/* Where pods may run. Give: (list . "gateway") */}}
{{- define "tig.scheduling" -}}
{{- $top := index . 0 -}}{{- $part := get $top.Values (index . 1) -}}
{{- with $part.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $part.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $part.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $part.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- $selector := include "tig.selector" . }}
{{- with $part.topologySpread.topologyKeys }}
topologySpreadConstraints:
  {{- range . }}
  - maxSkew: 1
    topologyKey: {{ . }}
    whenUnsatisfiable: {{ $part.topologySpread.whenUnsatisfiable }}
    # Counts this rollout's pods only: old pods must not influence where new ones are placed.
    matchLabelKeys: [pod-template-hash]
    labelSelector:
      matchLabels: {{- $selector | nindent 8 }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* An image by its parts. Give: (list . repository image) */}}
{{- define "tig.image" -}}
{{- $top := index . 0 -}}{{ index . 1 }}:{{ default $top.Chart.AppVersion (index . 2).tag }}
{{- end -}}

{{- define "tig.triton.repository" -}}
{{- $profile := include "tig.profile" . | fromYaml -}}
{{- default $profile.tritonRepository .Values.triton.image.repository -}}
{{- end -}}

{{/* Triton's arguments, as JSON: the image's own, unless models or cache are others. */}}
{{- define "tig.triton.args" -}}
{{- $profile := include "tig.profile" . | fromYaml -}}
{{- with .Values.triton -}}
{{- if .args -}}{{- toJson .args -}}
{{- else if .redis.host -}}
{{- $redis := list -}}
{{- /* Without limits, which are milliseconds, an absent Redis would hold every request up for ever. */ -}}
{{- range list (printf "host=%s" .redis.host) (printf "port=%d" (int .redis.port)) "pool_size=8" "wait_timeout=50" "connect_timeout=50" "socket_timeout=50" -}}
{{- $redis = append $redis (printf "--cache-config=redis,%s" .) -}}
{{- end -}}
{{- /* The Dockerfile's, but for the cache. */ -}}
{{- $before := list "python3" "/opt/sized" "--require-gpu" "tritonserver" "--model-repository=/models" "--model-control-mode=explicit" "--load-model=*" "--disable-auto-complete-config" -}}
{{- $after := list "--grpc-http2-min-recv-ping-interval-without-data=1000" "--grpc-http2-max-ping-strikes=0" "--exit-timeout-secs=5" "--backend-config=python,shm-default-byte-size=16777216" "--backend-config=python,shm-growth-byte-size=16777216" -}}
{{- toJson (concat $before $redis $after) -}}
{{- else -}}
{{- toJson (ternary (list) $profile.tritonModelArgs (eq .models.source "image")) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The gateways' fullness, as KEDA asks for it. */}}
{{- define "tig.fullness" -}}
{{- $in := printf "{%s}" (default (printf "namespace=%q, service=%q" .Release.Namespace (include "tig.gateway" .)) .Values.triton.autoscaling.selector) -}}
{{- $window := .Values.triton.autoscaling.window -}}
(sum(avg_over_time(gateway_images_in_flight{{ $in }}[{{ $window }}])) + sum(avg_over_time(gateway_images_waiting{{ $in }}[{{ $window }}]))) / sum(gateway_images_in_flight_limit{{ $in }})
{{- end -}}

{{/* What contradicts itself, though each value is allowed. */}}
{{- define "tig.check" -}}
{{- with .Values.triton -}}
{{- if and (eq .models.source "pvc") (not .models.pvc.claimName) -}}
{{- fail "triton.models.pvc.claimName: name the claim, since triton.models.source is pvc" -}}
{{- end -}}
{{- if eq .models.source "bucket" -}}
{{- if not .models.bucket.sha256 -}}{{- fail "triton.models.bucket.sha256: say the archive's checksum, since triton.models.source is bucket" -}}{{- end -}}
{{- if not (or .models.bucket.url .models.bucket.secretName) -}}{{- fail "triton.models.bucket.url: say where the archive is, or in which Secret that stands (triton.models.bucket.secretName)" -}}{{- end -}}
{{- end -}}
{{- if and (eq (toString .strategy.maxSurge) "0") (eq (toString .strategy.maxUnavailable) "0") -}}
{{- fail "triton.strategy: maxSurge and maxUnavailable must not both be 0; without a spare GPU set maxSurge to 0 and maxUnavailable to 1" -}}
{{- end -}}
{{- if and .autoscaling.scaleToZero (not .autoscaling.enabled) -}}
{{- fail "triton.autoscaling.scaleToZero: needs triton.autoscaling.enabled" -}}
{{- end -}}
{{- if and (eq (int .autoscaling.minReplicas) 0) (not .autoscaling.scaleToZero) -}}
{{- fail "triton.autoscaling.minReplicas: must be at least 1 unless triton.autoscaling.scaleToZero is true" -}}
{{- end -}}
{{- if gt (int .autoscaling.minReplicas) (int .autoscaling.maxReplicas) -}}
{{- fail "triton.autoscaling.minReplicas: must not be above triton.autoscaling.maxReplicas" -}}
{{- end -}}
{{- end -}}
{{- if .Values.triton.redis.host -}}
{{- if ne .Values.profile "gpu" -}}
{{- fail "triton.redis.host: the Triton of the profile cpu has no Redis cache and would not start; leave it empty, or use the profile gpu, whose image has one" -}}
{{- end -}}
{{- if .Values.triton.args -}}
{{- fail "triton.redis.host: triton.args replaces Triton's whole command; leave one of them empty" -}}
{{- end -}}
{{- if not .Values.gateway.cacheSecret.secretName -}}
{{- fail "gateway.cacheSecret.secretName: name a Secret, since triton.redis.host is set; without a common secret gateways share no answers" -}}
{{- end -}}
{{- end -}}
{{- with .Values.gateway -}}
{{- if gt (int .autoscaling.minReplicas) (int .autoscaling.maxReplicas) -}}
{{- fail "gateway.autoscaling.minReplicas: must not be above gateway.autoscaling.maxReplicas" -}}
{{- end -}}
{{- if and (eq (toString .strategy.maxSurge) "0") (eq (toString .strategy.maxUnavailable) "0") -}}
{{- fail "gateway.strategy: maxSurge and maxUnavailable must not both be 0" -}}
{{- end -}}
{{- end -}}
{{- if .Values.triton.autoscaling.scaleToZero -}}
{{- range $name := list "GATEWAY_MAX_WAIT_SECONDS" "GATEWAY_DEFAULT_TIMEOUT_SECONDS" -}}
{{- if lt (include "tig.number" (list $ $name 0) | int) 60 -}}
{{- fail (printf "gateway.settings.%s: must be at least 60 with triton.autoscaling.scaleToZero, since uploads are held until a Triton has started" $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and .Values.ingress.enabled (not .Values.ingress.hosts) -}}
{{- fail "ingress.hosts: name at least one host, since ingress.enabled is true" -}}
{{- end -}}
{{- if and .Values.httpRoute.enabled (not .Values.httpRoute.parentRefs) -}}
{{- fail "httpRoute.parentRefs: name the Gateway that takes the route, since httpRoute.enabled is true" -}}
{{- end -}}
{{- end -}}
