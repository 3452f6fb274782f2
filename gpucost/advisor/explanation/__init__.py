"""The walk through the layers for a job that exists: quota, gang and placement, device, running well.

``job_explanation`` is the way in: how it ended or what holds it, and what to do about it. ``layer_steps`` has
one function for each layer. For a job that waits, ``gpucost.advisor.advise`` is asked again. What must not:
anything about jobs that are not submitted; that is ``advise``.
"""
