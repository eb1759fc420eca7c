"""Contracts: frozen values and names that cross a process or land in a history. Standard library and pydantic only."""
