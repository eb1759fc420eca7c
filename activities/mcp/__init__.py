"""The client of MCP servers: one owner task for each kept connection, tools listed when a turn opens."""
