"""The commands of ``kronos``, one module each. Slow imports wait until a command needs them."""
