"""GPUs that are held and do nothing: whole jobs, and some of a job's GPUs.

``idle_allocation_rule`` finds stretches, ``servers`` decides for serving work (requests, past gaps),
``drafts`` writes findings and actions; how long GPUs may idle is set in ``detectors.rule_settings``. Begin
with ``idle_allocation_rule``.
"""
