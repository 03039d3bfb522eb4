"""The timestamps of bars to come, read off a lookback. No holidays are known."""
