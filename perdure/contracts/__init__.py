"""What crosses a process or lands in a history: frozen values and names. Standard library and pydantic only."""
