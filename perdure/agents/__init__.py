"""Definitions that an author of agents writes: the agent, its tools. Pure: no I/O, no clock, no Temporal."""
