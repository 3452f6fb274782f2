"""What only detectors look at, out of gpucost's own series: activity, demand, stalls, evictions, health,
quotas, and requests of servers. Must not: money; anything that attribution needs.
Begin with ``history_frames``, which puts the frames together.
"""
