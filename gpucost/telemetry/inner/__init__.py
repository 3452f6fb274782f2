"""Inner schedulers: Slurm or Ray, which share out the GPUs of pods among jobs that Kubernetes does not know.

``inner_jobs`` is what a record says, in one form; ``slurm_records`` and ``ray_jobs`` read texts into
it; ``record_folder`` reads files;
``pod_division`` cuts what pods held; ``inner_source`` puts that between any source and attribution. All but
``record_folder`` and ``inner_source`` is pure. What must not live here: queries, prices, rules of teams.
Begin with ``pod_division``.
"""
