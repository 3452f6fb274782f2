"""Nodes, waiting time and price of one request, after the quota layer has answered.

``placement_layer`` is the gang-and-placement layer, ``preempted_pods`` the pods that kube-scheduler would
preempt for it. ``queue_wait`` simulates how long it waits, ``run_price`` works out what it costs. Begin at
``placement_layer``. ``advise`` puts the results together. What must not: suggestions, which call this, and
rules of a scheduler, which are called from here.
"""
