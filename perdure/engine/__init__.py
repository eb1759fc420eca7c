"""Every decision of a turn, pure: no clock, no randomness, no I/O; time and random numbers come in as values."""
