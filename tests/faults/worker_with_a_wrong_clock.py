"""A worker whose clock is ``CLOCK_OFF_BY`` seconds wrong; the Temporal server and its own core keep the right one."""

import datetime
import os
import sys
import time

import perdure.worker.app  # noqa: F401 - loads every module that might read the clock
from perdure.worker.__main__ import main

OFF_BY = float(os.environ["CLOCK_OFF_BY"])


class WrongDatetime(datetime.datetime):
    """Tells the wrong time, in values of the ordinary class."""

    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> datetime.datetime:  # type: ignore[override]
        return datetime.datetime.now(tz) + datetime.timedelta(seconds=OFF_BY)


def set_wrong() -> None:
    right = time.time
    time.time = lambda: right() + OFF_BY
    for name, module in list(sys.modules.items()):
        ours = name.partition(".")[0] == "perdure"
        if ours and getattr(module, "datetime", None) is datetime.datetime:
            module.datetime = WrongDatetime  # type: ignore[attr-defined]


if __name__ == "__main__":
    set_wrong()
    main()
