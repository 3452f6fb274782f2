"""The second dialect: intervals from kube-state-metrics, use from dcgm-exporter, prices from OpenCost;
nothing of gpucost's runs. ``upstream_source`` puts it together: ``kube_*`` decide about money, ``dcgm_*``
and ``device_*`` say how the time was used. Must not: guess. What these series cannot tell is bounded and
reported as a problem. Begin with ``upstream_source``. Settings and frames call this dialect ``existing``.
"""
