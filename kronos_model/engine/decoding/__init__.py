"""From the newest token of every path to the next one."""
