"""What the sampled paths of a forecast say: chances of events, and statistics. No torch."""
