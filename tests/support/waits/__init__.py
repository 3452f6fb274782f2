"""Replays of waits: a FIFO queue over whole nodes, arrivals of the past, run times learnt on the way."""
