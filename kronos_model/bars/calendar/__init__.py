"""The timestamps of future bars, inferred from a lookback. No calendar of holidays is used."""
