"""What only detectors read, out of gpucost's own series: activity, demand, stalls, evictions, health, quotas,
and requests of servers. What must not live here: money; anything that attribution needs. Begin with
``history_frames``, which puts the frames together."""
