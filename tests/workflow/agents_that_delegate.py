"""Agents that call each other, for workers of their own."""

from tests.workflow.delegating import agent

helper = agent("helper", description="Helps.")
lead = agent("tester", delegates=[helper])
