"""One job: what it held, cost and wasted, what its detectors say of it, and its GPUs one by one.

What must not live here: rendering, and the reading of a source (inputs are handed over). It rests on month
(inputs, provenance) and waste. Its fields are listed in docs/reports.md. Begin at job_report.build_job.
"""
