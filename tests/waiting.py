"""How long tests wait for what must come."""

WAIT_S = 120
"""Far longer than anything takes on a slow and busy machine: what has not come by then never comes."""
