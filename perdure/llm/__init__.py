"""Models, without the network: formats, failures, retries, compaction, and tool calls in plain text."""
