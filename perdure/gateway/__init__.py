"""The HTTP door: start, watch, steer and stop jobs from any service, in any number of processes."""
