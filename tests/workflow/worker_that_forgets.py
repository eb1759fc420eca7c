"""A worker for which no other counts, so that a fleet exchanges keys without waiting 75 s for each that has ended."""

from datetime import timedelta

from perdure.client import worker_stores
from perdure.worker.__main__ import main

if __name__ == "__main__":
    vars(worker_stores)["POLLER_AGE"] = timedelta(0)
    main()
