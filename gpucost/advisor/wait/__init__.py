"""How long a job waits: run times from history, and the queue simulated with them.

``run_times`` pools runs of similar jobs, ``simulation`` plays the queue many times over: begin there.
``forecast_skill`` counts how often ranges held, and corrects the next ones by that. The queues themselves
(``QueueDiscipline``) are in ``kueue.admission`` and ``volcano.queue_simulation``. What must not: rules of a
scheduler, and randomness without a seed.
"""
