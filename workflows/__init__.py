"""What is durable: the workflows, and nothing that touches the outside world."""
