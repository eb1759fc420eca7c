"""Tests, by the kind of promise: unit, contract, workflow, replay, chaos, typing, docs."""
