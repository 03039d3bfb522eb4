"""The bundled checkpoint ``kronos-tiny``, and what trained and tested it."""
