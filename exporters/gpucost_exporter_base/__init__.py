"""What gpucost's exporters share: the HTTP endpoint and the guarded rendering of metrics.

It knows nothing about GPUs or Kubernetes. No pandas, numpy or SQL.
"""
