"""Agents that call each other, for workers of their own."""

from perdure import Delegate
from tests.workflow.delegating import agent

helper = agent("helper", description="Helps.")
lead = agent("tester", delegates=[helper])
beside = agent("beside", delegates=[Delegate(helper, background=True)])
