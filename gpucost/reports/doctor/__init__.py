"""What a Prometheus is good for: facts of a probe in, verdicts and settings to turn on out; no I/O.

``diagnose`` is the way in. ``features`` judges, ``steps`` and ``settings`` say what to turn on, ``facts``
puts into words what was found; ``terminal`` and ``document`` show it.
"""
