"""The door of A2A 1.0, below ``/a2a/{agent}``: each agent has a card, and a turn is a task."""
