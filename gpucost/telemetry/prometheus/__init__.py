"""The server: its HTTP API with faults repaired, PromQL by functions, answers taken apart, one cluster's
series, and who is believed. Must not: know what a pod, a node or a GPU is beyond the labels of scrape jobs;
frames. Begin with ``api_client``, then ``cluster_reader``; every query goes through ``promql``.
"""
