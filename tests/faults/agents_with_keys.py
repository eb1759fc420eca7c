"""An agent that has a key and a header of its own, by reference."""

import os

from perdure import Agent

agent = Agent(
    name="tester",
    model="openai/scripted",
    generate_params={
        "api_base": os.environ["OWN_URL"],
        "api_key": "${OWN}",
        "extra_headers": {"X-Gateway": "team ${GATE}"},
    },
)
