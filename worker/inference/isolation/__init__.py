"""A process that computes, one at a time, jobs that may crash their process."""
