"""A clerk with MCP servers and an output schema."""
