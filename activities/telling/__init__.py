"""Traces, metrics and gauges of a worker; pieces of answers for followers; deliveries to webhooks."""
