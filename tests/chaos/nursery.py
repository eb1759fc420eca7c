"""Imported once by the process from which the workers are forked: what every worker loads before it polls."""

import asyncio

import psycopg
import sqlalchemy.dialects.postgresql.psycopg
from temporalio.worker._worker import load_default_build_id

import tests.chaos.worker
from activities.model import warm_up
from tests.chaos.agents import agent

__all__ = ["psycopg", "sqlalchemy", "tests"]

asyncio.run(warm_up([agent.model]))  # its imports are most of a worker's start
load_default_build_id()  # reads every module again, and remembers what it found
