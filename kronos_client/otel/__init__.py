"""OpenTelemetry: spans of jobs, and metrics. Imported only where an app or OTEL_* variables ask for it.

``spans`` is for every process that sends jobs or waits for them, ``setup`` starts the export of a service,
``metrics`` exports a Prometheus registry.
"""
