"""Trace the steps of jobs to an OpenTelemetry collector, by OTLP over HTTP."""
