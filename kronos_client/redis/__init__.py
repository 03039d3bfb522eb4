"""What clients and workers share in Redis: connections, names, job records, scripts."""
