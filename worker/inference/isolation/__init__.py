"""A process for jobs that may have ended others: one at a time, with nobody else in it."""
