"""The door of OpenAI's Chat Completions."""
