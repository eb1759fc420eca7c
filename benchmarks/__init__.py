"""One command for every figure the README quotes. Ratios in one run first: machines are noisy."""
