{{- define "dblake.labels" -}}
app.kubernetes.io/name: dblake
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end }}

{{- define "dblake.name" -}}
{{ printf "%s-dblake" .Release.Name | trunc 52 | trimSuffix "-" }}
{{- end }}

{{/* What every container has: the configuration, the secrets by reference, and folders to write to. */}}
{{- define "dblake.container" -}}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- with .Values.secrets }}
env:
{{- range . }}
  - name: {{ .name }}
    valueFrom: {secretKeyRef: {name: {{ .secret }}, key: {{ .key }}}}
{{- end }}
{{- end }}
volumeMounts:
  - {name: configuration, mountPath: /etc/dblake, readOnly: true}
  - {name: data, mountPath: /var/lib/dblake}
  - {name: tmp, mountPath: /tmp}
{{- end }}

{{- define "dblake.pod" -}}
serviceAccountName: {{ .Values.serviceAccount }}
automountServiceAccountToken: false
terminationGracePeriodSeconds: 90
securityContext: {runAsNonRoot: true, runAsUser: 10001, runAsGroup: 10001, fsGroup: 10001, seccompProfile: {type: RuntimeDefault}}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
volumes:
  - name: configuration
    configMap: {name: {{ include "dblake.name" . }}}
  - name: data
    {{- if .Values.volumeClaim }}
    persistentVolumeClaim: {claimName: {{ .Values.volumeClaim }}}
    {{- else }}
    emptyDir: {}
    {{- end }}
  - name: tmp
    emptyDir: {}
{{- end }}
