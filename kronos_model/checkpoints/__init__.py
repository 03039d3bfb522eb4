"""The checkpoints that come with this package, one folder each, and what makes them."""
