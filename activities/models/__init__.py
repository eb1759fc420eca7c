"""One call of one model: from the conversation to the attempt, the provider's reply, and the step that it becomes."""
