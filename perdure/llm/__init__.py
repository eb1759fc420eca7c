"""What the worker knows of models: their formats, their failures, and how the calls of tools are read from text."""
