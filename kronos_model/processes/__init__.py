"""Child processes: starting, watching and ending them."""
