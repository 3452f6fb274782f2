"""Settings -> the parts they describe, wired together: a module for each part, a function for each object.

What may live here: the reading of settings, and constructors. What must not: loops, rules, anything that a
part could decide for itself. A module imports the part that it builds, so import it where it is needed: a
command then loads no part that it does not use. Begin with ``inputs``, ``source`` and ``pipeline``, of which
``gpucost ingest`` is made.
"""
