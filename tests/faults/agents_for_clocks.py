"""Agents for a worker with a wrong clock."""

from datetime import timedelta

from perdure import Agent, Budgets
from perdure.contracts.retries import RetryPolicy

QUICK = RetryPolicy(max_retries=2, base=timedelta(milliseconds=10), jitter=timedelta(0))

agent = Agent(name="tester", model="openai/scripted", retry=QUICK)
hurried = Agent(name="hurried", model="openai/scripted", retry=QUICK, budgets=Budgets(seconds=timedelta(seconds=2)))
