{{- define "dblake.labels" -}}
app.kubernetes.io/name: dblake
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end }}

{{/* With `-capture` and the hash of a revision, or `-run` and a Job's time, a label has room for 63 characters. */}}
{{- define "dblake.name" -}}
{{ printf "%s-dblake" .Release.Name | trunc 44 | trimSuffix "-" }}
{{- end }}

{{/* What every container has: the configuration, the secrets by reference, and folders to write to. */}}
{{- define "dblake.container" -}}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- if or .Values.secrets .Values.env }}
env:
{{- range .Values.secrets }}
  - name: {{ .name }}
    valueFrom: {secretKeyRef: {name: {{ .secret }}, key: {{ .key }}}}
{{- end }}
{{- range $name, $value := .Values.env }}
  - {name: {{ $name }}, value: {{ $value | quote }}}
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
