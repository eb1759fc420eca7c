"""Kill and compare: scripted jobs meet seeded faults at every event boundary, and must end as an undisturbed run."""
