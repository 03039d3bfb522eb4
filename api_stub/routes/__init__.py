"""The HTTP API's routes, one module for each resource."""
