"""An agent with skills, for workers of their own."""

import os
from pathlib import Path

from perdure import Agent, ask_user
from perdure.skills import skills_in

agent = Agent(
    name="tester",
    model="openai/scripted",
    tools=[ask_user],
    skills=skills_in(Path(os.environ["SKILLS"]), on_invalid="skip"),
)
