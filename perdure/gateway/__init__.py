"""The HTTP gateway: other services start, follow, steer and cancel turns through it, in any number of processes."""
