{{- define "tig.prefix" -}}
{{- default .Release.Name .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "tig.gateway" -}}{{ include "tig.prefix" . }}-gateway{{- end -}}
{{- define "tig.triton" -}}{{ include "tig.prefix" . }}-triton{{- end -}}

{{/* Labels of selectors: they must never change. Give: (list . "gateway") */}}
{{- define "tig.selector" -}}
{{- $top := index . 0 -}}
app.kubernetes.io/name: {{ default $top.Chart.Name $top.Values.nameOverride }}
app.kubernetes.io/instance: {{ $top.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{- define "tig.labels" -}}
{{- $top := index . 0 -}}
{{ include "tig.selector" . }}
app.kubernetes.io/version: {{ $top.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $top.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $top.Chart.Name $top.Chart.Version | replace "+" "_" }}
{{- with omit $top.Values.commonLabels "app.kubernetes.io/name" "app.kubernetes.io/instance" "app.kubernetes.io/component" }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Labels of a pod: its own override the common ones, but no selector. Give: (list . "gateway" labels) */}}
{{- define "tig.podLabels" -}}
{{- $selector := include "tig.selector" . | fromYaml -}}
{{- $labels := include "tig.labels" . | fromYaml -}}
{{- merge $selector (deepCopy (index . 2)) $labels | toYaml -}}
{{- end -}}

{{- define "tig.profile" -}}
{{- get .Values.profiles .Values.profile | toYaml -}}
{{- end -}}

{{/* A value as an environment variable: Helm's numbers are floats, and 2147483648 must not become 2.147483648e+09. */}}
{{- define "tig.text" -}}
{{- if and (kindIs "float64" .) (eq (floor .) .) -}}{{ printf "%.0f" . }}{{- else -}}{{ . }}{{- end -}}
{{- end -}}

{{/* The claim with TensorRT's engines; empty if there is none. */}}
{{- define "tig.tensorrtClaim" -}}
{{- with .Values.triton.tensorrtCache -}}
{{- default (ternary (printf "%s-tensorrt" (include "tig.triton" $)) "" .create) .claimName -}}
{{- end -}}
{{- end -}}

{{/* Cores that one Triton requests. */}}
{{- define "tig.cores" -}}
{{- $profile := include "tig.profile" . | fromYaml -}}
{{- $resources := .Values.triton.resources | default $profile.tritonResources -}}
{{- $cpu := dig "requests" "cpu" (dig "limits" "cpu" "1" $resources) $resources | toString -}}
{{- ternary (divf (trimSuffix "m" $cpu | float64) 1000) (float64 $cpu) (hasSuffix "m" $cpu) -}}
{{- end -}}

{{/* Size of /dev/shm: 64 MiB for each Python process, as gateway/machine/capacity.py has it; with models on the CPU these are one or two more
than there are cores, and at least four. */}}
{{- define "tig.sharedMemory" -}}
{{- mul 64 (add 2 (max 2 (int (ceil (include "tig.cores" . | float64))))) -}}Mi
{{- end -}}

{{/* Images that one Triton can have in flight: 16 for each core and 128 for each GPU, as gateway/machine/capacity.py has them. */}}
{{- define "tig.inFlightPerTriton" -}}
{{- $profile := include "tig.profile" . | fromYaml -}}
{{- $resources := .Values.triton.resources | default $profile.tritonResources -}}
{{- $cores := include "tig.cores" . | float64 -}}
{{- /* nvidia.com/gpu, and slices of one, such as nvidia.com/mig-1g.10gb. */ -}}
{{- $gpus := 0.0 -}}
{{- range $name, $count := dig "limits" dict $resources -}}
{{- if hasPrefix "nvidia.com/" $name -}}{{- $gpus = addf $gpus (float64 $count) -}}{{- end -}}
{{- end -}}
{{- addf (mulf 16 $cores) (mulf 128 $gpus) -}}
{{- end -}}

{{/* Images in flight of each gateway: its share of what the Triton servers can have in flight. */}}
{{- define "tig.inFlight" -}}
{{- $tritons := ternary .Values.triton.autoscaling.maxReplicas .Values.triton.replicas .Values.triton.autoscaling.enabled -}}
{{- $gateways := ternary .Values.gateway.autoscaling.maxReplicas .Values.gateway.replicas .Values.gateway.autoscaling.enabled -}}
{{- $images := divf (mulf (include "tig.inFlightPerTriton" . | float64) (float64 $tritons)) (float64 (max 1 (int $gateways))) -}}
{{- max 32 (mul 8 (int (ceil (divf $images 8)))) -}}
{{- end -}}

{{/* Every GATEWAY_ variable: the chart's own, over the values', over the profile's. */}}
{{- define "tig.settings" -}}
{{- /* Not merge, to which false and 0 are as good as nothing. */ -}}
{{- $settings := deepCopy (include "tig.profile" . | fromYaml).settings -}}
{{- if .Values.gateway.tritonUrl -}}
{{- $_ := set $settings "GATEWAY_HEAL" false -}}
{{- else -}}
{{- /* As Triton's --load-model=*: what could not be loaded is loaded as soon as it can be. */ -}}
{{- $_ := set $settings "GATEWAY_LOAD_MODELS" "*" -}}
{{- end -}}
{{- $inFlight := include "tig.inFlight" . | int -}}
{{- $_ := set $settings "GATEWAY_MAX_IMAGES_IN_FLIGHT" $inFlight -}}
{{- range $name, $value := .Values.gateway.settings -}}{{- $_ := set $settings $name $value -}}{{- end -}}
{{- /* What requests load, recovery must not. */ -}}
{{- if and $settings.GATEWAY_MODELS_MEMORY_BYTES (not (hasKey .Values.gateway.settings "GATEWAY_LOAD_MODELS")) -}}
{{- $_ := unset $settings "GATEWAY_LOAD_MODELS" -}}
{{- end -}}
{{- /* The names under which clients reach the Service; .svc.cluster.local is local for the gateway. */ -}}
{{- $name := printf "%s.%s" (include "tig.gateway" .) .Release.Namespace -}}
{{- $hosts := list $name (printf "%s.svc" $name) -}}
{{- if .Values.ingress.enabled -}}{{- $hosts = concat $hosts .Values.ingress.hosts -}}{{- end -}}
{{- if .Values.httpRoute.enabled -}}{{- $hosts = concat $hosts .Values.httpRoute.hostnames -}}{{- end -}}
{{- with $settings.GATEWAY_HOSTS -}}{{- $hosts = append $hosts . -}}{{- end -}}
{{- $_ := set $settings "GATEWAY_HOSTS" (join "," $hosts) -}}
{{- $_ := set $settings "GATEWAY_HOST" "0.0.0.0" -}}
{{- $_ := set $settings "GATEWAY_PORT" "8080" -}}
{{- $_ := set $settings "GATEWAY_LOG_FORMAT" "json" -}}
{{- $_ := set $settings "GATEWAY_TRITON_URL" (default (printf "%s:8001" (include "tig.triton" .)) .Values.gateway.tritonUrl) -}}
{{- with .Values.triton.tls -}}
{{- if .secretName -}}
{{- $_ := set $settings "GATEWAY_TRITON_CA_FILE" "/etc/gateway/triton-ca/ca.crt" -}}
{{- $_ := set $settings "GATEWAY_TRITON_SERVER_NAME" (default (include "tig.triton" $) .serverName) -}}
{{- if .clientSecretName -}}
{{- $_ := set $settings "GATEWAY_TRITON_CERTIFICATE_FILE" "/etc/gateway/triton-client/tls.crt" -}}
{{- $_ := set $settings "GATEWAY_TRITON_KEY_FILE" "/etc/gateway/triton-client/tls.key" -}}
{{- end -}}
{{- end -}}
{{- end -}}
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

{{/* "true" if the gateways load models when requests need them. */}}
{{- define "tig.onDemand" -}}
{{- if (include "tig.settings" . | fromYaml).GATEWAY_MODELS_MEMORY_BYTES -}}true{{- end -}}
{{- end -}}

{{/* Variables from which `gateway triton run`, in the image for CPUs, knows which models to load when Triton starts. */}}
{{- define "tig.triton.demandEnv" -}}
{{- $env := list -}}
{{- if and (include "tig.onDemand" .) (eq .Values.profile "cpu") -}}
{{- $settings := include "tig.settings" . | fromYaml -}}
{{- range list "GATEWAY_MODELS_MEMORY_BYTES" "GATEWAY_LOAD_MODELS" "GATEWAY_MODEL" -}}
{{- if hasKey $settings . -}}{{- $env = append $env (dict "name" . "value" (include "tig.text" (get $settings .))) -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- toJson $env -}}
{{- end -}}

{{/* One number of the settings, or its default in gateway/settings.py. Give: (list . "GATEWAY_X" default) */}}
{{- define "tig.number" -}}
{{- $settings := include "tig.settings" (index . 0) | fromYaml -}}
{{- $value := get $settings (index . 1) | default (index . 2) -}}
{{- $unit := 1.0 -}}
{{- if kindIs "string" $value -}}
{{- /* As gateway/values/setting_values.py reads them: 2 GiB, 30 s. */ -}}
{{- $units := dict "kB" 1e3 "MB" 1e6 "GB" 1e9 "KiB" 1024 "MiB" 1048576 "GiB" 1073741824 "s" 1 "" 1 -}}
{{- $unit = get $units (regexFind "[A-Za-z]*$" $value) -}}
{{- $value = regexFind "^[0-9.]+" (replace "," "" $value) -}}
{{- end -}}
{{- mulf (float64 $value) $unit | ceil | printf "%.0f" -}}
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
{{- with $part.schedulerName }}
schedulerName: {{ . }}
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
{{- $top := index . 0 -}}{{- $image := index . 2 -}}
{{- index . 1 -}}{{- if $image.digest -}}@{{ $image.digest }}{{- else -}}:{{ default $top.Chart.AppVersion $image.tag }}{{- end -}}
{{- end -}}

{{/* The name of a part's ServiceAccount; empty for the namespace's default. Give: (list . "gateway") */}}
{{- define "tig.serviceAccount" -}}
{{- $account := (get (index . 0).Values (index . 1)).serviceAccount -}}
{{- $created := ternary (include (printf "tig.%s" (index . 1)) (index . 0)) "" $account.create -}}
{{- default $created $account.name -}}
{{- end -}}

{{/* What the pods of both parts have in common. Give: (list . "gateway") */}}
{{- define "tig.pod" -}}
{{- $top := index . 0 -}}{{- $part := get $top.Values (index . 1) -}}
automountServiceAccountToken: {{ $part.serviceAccount.automountToken }}
{{- with include "tig.serviceAccount" . }}
serviceAccountName: {{ . }}
{{- end }}
# Kubernetes would otherwise set GATEWAY_PORT and others, for a Service of that name.
enableServiceLinks: false
{{- with $top.Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $part.podSecurityContext }}
securityContext: {{- toYaml . | nindent 2 }}
{{- end }}
{{- include "tig.scheduling" . }}
{{- end -}}

{{- define "tig.triton.repository" -}}
{{- $profile := include "tig.profile" . | fromYaml -}}
{{- default $profile.tritonRepository .Values.triton.image.repository -}}
{{- end -}}

{{/* Triton's arguments, as JSON: the image's own, unless models, cache, TLS or others are added. */}}
{{- define "tig.triton.args" -}}
{{- $profile := include "tig.profile" . | fromYaml -}}
{{- with .Values.triton -}}
{{- $extra := list -}}
{{- if .tls.secretName -}}
{{- $extra = concat $extra (list "--grpc-use-ssl=true" "--grpc-server-cert=/etc/triton/tls/tls.crt" "--grpc-server-key=/etc/triton/tls/tls.key" "--grpc-root-cert=/etc/triton/tls/ca.crt") -}}
{{- if .tls.clientSecretName -}}{{- $extra = append $extra "--grpc-use-ssl-mutual=true" -}}{{- end -}}
{{- end -}}
{{- $extra = concat $extra .extraArgs -}}
{{- $cache := list -}}
{{- if .redis.host -}}
{{- /* Without limits, which are milliseconds, an absent Redis would hold every request up for ever. */ -}}
{{- range list (printf "host=%s" .redis.host) (printf "port=%d" (int .redis.port)) "pool_size=8" "wait_timeout=50" "connect_timeout=50" "socket_timeout=50" -}}
{{- $cache = append $cache (printf "--cache-config=redis,%s" .) -}}
{{- end -}}
{{- end -}}
{{- if .args -}}{{- toJson (concat .args $extra) -}}
{{- else -}}
{{- $own := $profile.tritonArgs -}}
{{- if .models.bucket.native -}}
{{- /* Without the command that sizes the models of a folder. */ -}}
{{- $native := list "tritonserver" (printf "--model-repository=%s" .models.bucket.url) -}}
{{- range $own -}}{{- if and (hasPrefix "--" .) (not (has . (list "--model-repository=/models" "--require-gpu"))) -}}{{- $native = append $native . -}}{{- end -}}{{- end -}}
{{- $own = $native -}}
{{- end -}}
{{- if ne .models.source "image" -}}{{- $own = concat $own $profile.tritonModelArgs -}}{{- end -}}
{{- if include "tig.onDemand" $ -}}
{{- /* Triton must have one; the gateways load the others that stay. */ -}}
{{- $first := list -}}
{{- range $own -}}{{- $first = append $first (ternary (printf "--load-model=%s" (include "tig.model" $)) . (eq . "--load-model=*")) -}}{{- end -}}
{{- $own = $first -}}
{{- end -}}
{{- if $cache -}}
{{- $others := list -}}
{{- range $own -}}{{- if not (hasPrefix "--cache-config=" .) -}}{{- $others = append $others . -}}{{- end -}}{{- end -}}
{{- $own = concat $others $cache -}}
{{- end -}}
{{- /* `gateway triton run` of the image for CPUs passes on what follows --. */ -}}
{{- if and $extra (eq $.Values.profile "cpu") -}}{{- $own = append $own "--" -}}{{- end -}}
{{- $all := concat $own $extra -}}
{{- /* A list replaces the image's own arguments, so that there is none where they are the same. */ -}}
{{- toJson (ternary (list) $all (eq (toJson $all) (toJson $profile.tritonArgs))) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Images in flight and waiting in all gateways, as KEDA asks for them. */}}
{{- define "tig.outstanding" -}}
{{- $in := printf "{%s}" (default (printf "namespace=%q, service=%q" .Release.Namespace (include "tig.gateway" .)) .Values.triton.autoscaling.selector) -}}
{{- $window := .Values.triton.autoscaling.window -}}
sum(avg_over_time(gateway_images_in_flight{{ $in }}[{{ $window }}])) + sum(avg_over_time(gateway_images_waiting{{ $in }}[{{ $window }}]))
{{- end -}}

{{/* Images in flight and waiting that one Triton is to have: it does not depend on the number of gateways. */}}
{{- define "tig.imagesPerTriton" -}}
{{- with .Values.triton.autoscaling -}}
{{- default (mulf .targetFullness (include "tig.inFlightPerTriton" $ | float64) | ceil | int) (int .imagesPerTriton) -}}
{{- end -}}
{{- end -}}

{{/* The model of requests that name none. */}}
{{- define "tig.model" -}}
{{- default "ensemble_model" .Values.gateway.settings.GATEWAY_MODEL -}}
{{- end -}}

{{/* The model of Triton's probes: the gateway's default one, unless another is named. */}}
{{- define "tig.probeModel" -}}
{{- default (include "tig.model" .) .Values.triton.probes.model -}}
{{- end -}}

{{/* When Triton servers are added and removed: the same for KEDA's autoscaler and a plain one. */}}
{{- define "tig.triton.behavior" -}}
{{- with .Values.triton.autoscaling -}}
# A new Triton takes a minute to start. Without the window, each evaluation meanwhile would add another one.
scaleUp:
  stabilizationWindowSeconds: {{ .scaleUpStabilizationSeconds }}
  policies: [{type: Percent, value: 100, periodSeconds: 120}]
scaleDown:
  stabilizationWindowSeconds: {{ .scaleDownStabilizationSeconds }}
  policies: [{type: Pods, value: 1, periodSeconds: 300}]
{{- end -}}
{{- end -}}

{{/* A container that copies a bucket's model repository. Give: (list . name options) */}}
{{- define "tig.pull" -}}
{{- $top := index . 0 -}}{{- $bucket := $top.Values.triton.models.bucket -}}
- name: {{ index . 1 }}
  image: {{ $bucket.image | default (include "tig.image" (list $top $top.Values.gateway.image.repository $top.Values.gateway.image)) }}
  imagePullPolicy: {{ $top.Values.gateway.image.pullPolicy }}
  command: {{ concat (list "gateway" "model" "pull" $bucket.url "/models/repository") (index . 2) | toJson }}
  {{- with $top.Values.triton.extraEnvFrom }}
  envFrom: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $top.Values.triton.extraEnv }}
  env: {{- toYaml . | nindent 4 }}
  {{- end }}
  resources:
    requests: {cpu: 100m, memory: 256Mi}
    limits: {memory: 1Gi}
  securityContext: {{- merge (dict "readOnlyRootFilesystem" true) $top.Values.triton.containerSecurityContext | toYaml | nindent 4 }}
  volumeMounts:
    - {name: models, mountPath: /models}
    - {name: tmp, mountPath: /tmp}
    {{- with $top.Values.triton.extraVolumeMounts }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end -}}

{{/* What contradicts itself, though each value is allowed. */}}
{{- define "tig.check" -}}
{{- with .Values.triton -}}
{{- if and (eq .models.source "pvc") (not .models.pvc.claimName) (not .models.pvc.create) -}}
{{- fail "triton.models.pvc.claimName: name the claim, since triton.models.source is pvc" -}}
{{- end -}}
{{- if eq .models.source "bucket" -}}
{{- if not .models.bucket.url -}}{{- fail "triton.models.bucket.url: name the bucket, since triton.models.source is bucket" -}}{{- end -}}
{{- if and .models.bucket.native (eq $.Values.profile "cpu") -}}
{{- fail "triton.models.bucket.native: the Triton of the profile cpu cannot read buckets; leave it false, and a container copies the models" -}}
{{- end -}}
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
{{- if and .autoscaling.enabled .autoscaling.scaleToZero (eq .autoscaling.by "hpa") -}}
{{- fail "triton.autoscaling.scaleToZero: needs triton.autoscaling.by: keda, since a HorizontalPodAutoscaler keeps at least one" -}}
{{- end -}}
{{- if and .tls.clientSecretName (not .tls.secretName) -}}
{{- fail "triton.tls.secretName: name a Secret, since triton.tls.clientSecretName is set" -}}
{{- end -}}
{{- end -}}
{{- if and (include "tig.number" (list . "GATEWAY_GRPC_PORT" 0) | int) (not .Values.gateway.apiKeys.secretName) (not .Values.gateway.settings.GATEWAY_API_KEYS_FILE) -}}
{{- fail "gateway.apiKeys.secretName: name a Secret, since gateway.settings.GATEWAY_GRPC_PORT is set, and gRPC beyond loopback needs API keys" -}}
{{- end -}}
{{- if and .Values.gateway.service.nodePort (eq .Values.gateway.service.type "ClusterIP") -}}
{{- fail "gateway.service.nodePort: needs gateway.service.type NodePort or LoadBalancer" -}}
{{- end -}}
{{- if .Values.gateway.tritonUrl -}}
{{- if .Values.triton.autoscaling.scaleToZero -}}
{{- fail "gateway.tritonUrl: leave it empty with triton.autoscaling.scaleToZero, for which gateways must see that there is no Triton" -}}
{{- end -}}
{{- if .Values.gateway.adminKeys.secretName -}}
{{- fail "gateway.adminKeys.secretName: leave it empty with gateway.tritonUrl, since loading a model through a balancer reaches any one of the Triton servers" -}}
{{- end -}}
{{- if .Values.gateway.settings.GATEWAY_HEAL -}}
{{- fail "gateway.settings.GATEWAY_HEAL: must not be true with gateway.tritonUrl, since a reload through a balancer reaches any one of the Triton servers" -}}
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
