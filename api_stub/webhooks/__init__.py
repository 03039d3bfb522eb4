"""Webhooks: the service calls an address when a job ends. Off unless KRONOS_WEBHOOK_SECRET is set."""
