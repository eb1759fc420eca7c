"""The worker that an operator starts; it also writes its counters down, as if it were scraped at each transaction."""

import os
import runpy
from pathlib import Path

from tests.chaos.counted import write_down

write_down(Path(os.environ["CHAOS_FOLDER"]))
runpy.run_module("perdure.worker", run_name="__main__", alter_sys=True)
