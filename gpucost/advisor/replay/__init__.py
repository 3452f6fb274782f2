"""A month over simulated time: arrivals, capacity and rules in; starts, evictions and ends out. Pure.

Begin at ``replay_timeline.play``: it moves the clock from event to event and asks a ``ReplayDiscipline`` what
happens. ``kueue_replay`` is Kueue's, on the rules of ``gpucost.advisor.kueue``, with what only Kueue's memory
holds (``pending_lines``); ``fifo_nodes`` is strict FIFO over whole nodes. Held against histories of the real
scheduler by ``gpucost.advisor.verify.history_check`` (docs/decisions/0021-replay.md).
What must not: I/O, clocks, random numbers, statistics of the outcome.
"""
