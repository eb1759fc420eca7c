"""The door of OpenAI's Responses API, below ``/openai/v1``: a job is a response, and an agent a model."""
