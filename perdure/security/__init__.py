"""Masking of secrets, approvals of tool calls by people, and the keys of encrypted content."""
