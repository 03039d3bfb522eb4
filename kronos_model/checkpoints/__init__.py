"""Finding, loading and saving checkpoints."""
