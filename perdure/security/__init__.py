"""What is hidden from people and models, and which calls of tools need a person."""
