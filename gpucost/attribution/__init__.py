"""Intervals x capacity x prices -> usage lines that add up. Pure: frames in, frames out.

What may live here: the sweep over time, the dealing of milliseconds and nano-units, team rules, and the
sharing of idle and common cost. What must not: I/O, SQL, Prometheus, Kubernetes objects.
"""
