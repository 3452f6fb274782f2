"""A cluster as it is now: the rows of ``gpucost state show``, and the reports "queues now" and "nodes now".

Pure functions over a ``ClusterOverview`` (gpucost.cluster), with the prices of a book and what a reader may
see (``cluster_reader``). What must not live here: I/O, clocks, the ledger. Begin with ``state_facts`` for the
terminal, ``queues_now`` and ``nodes_now`` for the API and the pages.
"""
