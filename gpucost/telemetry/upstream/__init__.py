"""The upstream dialect: intervals from kube-state-metrics, use from dcgm-exporter, prices from OpenCost; none
of gpucost's exporters runs. ``upstream_source`` puts it together: ``kube_*`` decide about money, ``dcgm_*``
and ``device_*`` about how the time was used. What must not live here: guesses. What these series do not show
is bounded and reported as a problem. Begin with ``upstream_source``. Settings and frames call this dialect
``existing``."""
