"""The worker process: agents loaded, activities and workflows registered, health and metrics served."""
