"""The demo: one agent with real tools on this checkout, a scripted model, and a worker that is killed on the way."""
