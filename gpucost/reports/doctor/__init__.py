"""What a Prometheus is good for: facts of a probe in, verdicts and recommended settings out; no I/O.

``diagnose`` is the way in, and describes what was found. ``features`` judges, ``steps`` and ``settings`` say
what to turn on, ``model`` has the types and what gpucost needs, ``output`` shows it. What must not live here:
queries (telemetry.doctor has them).
"""
