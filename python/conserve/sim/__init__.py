"""The simulator: the real router on virtual time."""
