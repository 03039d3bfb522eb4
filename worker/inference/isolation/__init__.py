"""A process for jobs that may have ended others: it computes one at a time."""
