"""Tools for agents over HTTP: ``mount`` adds the address, ``service`` has what the tools need here."""
