"""Threads and event loops that run the code of authors, contained."""
