"""The bundled checkpoint ``kronos-tiny``, its training and its test."""
