"""Whether every pod of a gang finds a node, all at once, also once victims are gone. Pure.

``free_capacity`` is what is free on nodes, ``pod_demand`` what is to be placed; begin at ``gang_placement``,
which answers. ``gang_solver`` decides over blocks of pod sets, ``packing`` how different pods share nodes,
``topology_domains`` in which domains they may stand. ``preemption`` says which pods kube-scheduler preempts
and what that frees, ``node_pools`` what an autoscaler adds, ``repaired_nodes`` what repairs give. What must
not: quota, queues, and words for people beyond the reasons why nodes refuse a pod.
"""
