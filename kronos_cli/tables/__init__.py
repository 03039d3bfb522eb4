"""What the commands print: tables for the terminal, and the same as JSON."""
