"""Agents for workers that are killed while a model writes."""

from datetime import timedelta

from perdure import Agent
from perdure.contracts.retries import RetryPolicy

agent = Agent(
    name="tester",
    model="openai/scripted",
    retry=RetryPolicy(max_retries=2, base=timedelta(milliseconds=10), jitter=timedelta(0)),
)
