"""Imported once by the process from which the workers are forked: what every worker loads before it polls."""

import asyncio

import psycopg
import sqlalchemy.dialects.postgresql.psycopg
from temporalio.worker._worker import load_default_build_id

from perdure.activities.models.model_call import warm_up
from perdure.libraries import settle_heap
from perdure.worker import app

__all__ = ["app", "psycopg", "sqlalchemy"]

asyncio.run(warm_up(["openai/scripted"]))  # its imports are most of a worker's start
load_default_build_id()  # reads every module again, and remembers what it found
settle_heap()  # so that no worker goes through it again and copies its pages
