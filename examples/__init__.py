"""Examples that assert what they show and exit non-zero otherwise."""
