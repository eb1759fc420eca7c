"""The door of AG-UI, below ``/agui/{agent}``: a session is a thread, and a run a turn, or a part of one that waited."""
