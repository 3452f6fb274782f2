"""The second dialect: intervals from kube-state-metrics, use from dcgm-exporter; nothing of gpucost's runs.

``source`` puts it together. Money comes from ``pods`` and ``nodes``, by the same evidence rule as the first
dialect's (telemetry.evidence); ``gpus`` and what builds on it say how the time was used. What these series
cannot tell is bounded and told as a problem, never guessed.
"""
