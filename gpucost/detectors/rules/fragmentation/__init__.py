"""Free GPUs that waiting work cannot use, because they lie in the wrong places.

``fragmentation_rule`` runs and claims, ``blocked_jobs`` says who is blocked, ``views`` explain and propose
(spread, gauge, repack), ``node_packing`` finds what to move, ``fgd_gauge`` measures (Weng et al., ATC 2023).
What must not live here: a view that claims time. Begin with ``fragmentation_rule``.
"""
