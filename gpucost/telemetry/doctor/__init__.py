"""What a Prometheus holds that gpucost could use: the queries of ``gpucost doctor``, and no judgement (that
is reports.doctor). ``cluster_probe`` puts the facts together (gpucost.contract.probe) out of some twenty
queries that stay cheap on large servers. Must not: words for people, verdicts, pandas. Begin with
``cluster_probe``.
"""
