"""The question to the advisor, and what the answer is made from.

``scheduling_request`` is a job as all layers see it, made of a manifest or of a job that
exists. ``context`` (``AdvisorContext``) is the cluster, history, prices and settings, with what is
worked out once for many questions. Begin at ``scheduling_request``. Rules of the schedulers live in
``kueue``, ``volcano`` and ``placement``. What must not: answers; those are made in ``estimate`` and
``advise``.
"""
