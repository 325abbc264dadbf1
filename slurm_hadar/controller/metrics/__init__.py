"""What ticks come to, counted for Prometheus."""
