"""The agent of the tests that kill and restart workers in processes of their own."""

from tests.workflow.asking import asker

agent = asker(max_steps=5)
