"""The wire: what a job, a result and an error look like. Apps and workers share it; no torch."""
