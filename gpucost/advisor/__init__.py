"""The admission advisor: will a job run, when, at what price, and what to change.

Begin at ``advise``; of jobs that exist at ``explanation``.
What lives here: pure functions from a manifest or a job and a ``ClusterState`` to an answer over quota,
gang, placement and device. ``kueue`` and ``volcano`` restate their rules for one pinned version each;
``request`` is what is asked and known, ``model`` what is answered. ``estimate`` asks nodes, time and prices,
``suggest`` changes and asks again, ``replay`` plays rules over simulated time, ``verify`` holds them against
recorded decisions and histories. What must not: I/O, clocks, random numbers of its own, pandas: the webhook
answers from here, in milliseconds.
"""
