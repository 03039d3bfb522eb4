"""The output of commands: tables for the terminal, and JSON."""
