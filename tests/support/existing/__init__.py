"""A scripted month, and what each of two sets of exporters would have shown of it to a Prometheus.

``script`` is the month; ``frames`` its truth in gpucost's own form, which the simulator writes out as the
first dialect; ``kube_series`` and ``dcgm_series`` are the second; ``variants`` says how it was scraped.
"""
