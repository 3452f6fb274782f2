"""The Prometheus server: its HTTP API with faults repaired, PromQL built by functions, parsed answers, the
series of one cluster, and which scrape jobs are believed. What must not live here: knowledge of pods, nodes
or GPUs beyond the labels of scrape jobs; frames. Begin with ``api_client``, then ``cluster_reader``; every
query is built in ``promql``."""
