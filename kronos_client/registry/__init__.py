"""The registered models in the shared model folder."""
