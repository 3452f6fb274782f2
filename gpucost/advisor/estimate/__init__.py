"""What nodes, time and prices say of one request, once the quota layer has spoken.

``placement_layer`` is the gang-and-placement layer, ``preempted_pods`` whom kube-scheduler would preempt for
it. ``queue_wait`` simulates how long it waits, ``run_price`` what it costs.
Begin at ``placement_layer``. ``advise`` puts the results together.
What must not: suggestions, and rules of a scheduler: those are called from here.
"""
