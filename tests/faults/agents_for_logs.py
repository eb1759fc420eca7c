"""An agent whose turns wait while a test looks at its worker's log."""

from perdure import Agent

tester = Agent(name="tester", model="openai/scripted")
