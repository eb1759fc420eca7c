"""Workflows: all that is durable, and nothing that touches the outside world."""
