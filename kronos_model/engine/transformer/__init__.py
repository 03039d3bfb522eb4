"""The model as the engine runs it: layers, attention, and keys and values in slots."""
