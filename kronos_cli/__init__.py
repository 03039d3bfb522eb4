"""Everything behind ``./kronos`` and the command ``kronos``."""
