"""Who computes what and when: shares, slots and chunks. No torch."""
