"""Intervals x capacity x prices -> usage lines that add up. Pure: frames in, frames out.

``segments`` cuts capacity, ``sweep`` lays what was held over it, ``apportion`` deals milliseconds and
nano-units, ``lines`` and ``usage_lines`` are what comes out, ``teams`` has the team rules, ``conservation``
proves the sums. What must not live here: I/O, SQL, Prometheus, Kubernetes objects; idle and common cost are
shared in reports.month.allocations. Begin at attribute.attribute.
"""
