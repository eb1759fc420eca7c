"""A workflow that looks at a clock, or draws a random number, as workflow code must not."""

import random
import time

from temporalio import workflow


@workflow.defn(failure_exception_types=[Exception])
class Careless:
    @workflow.run
    async def run(self, what: str) -> float:
        return {"clock": time.time, "chance": random.random}[what]()
