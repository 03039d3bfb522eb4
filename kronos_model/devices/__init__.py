"""Which device computes, and what it offers."""
