"""Does every pod of a gang find a node, all at once, also after the victims are gone? Pure.

``rooms`` is the free room of nodes, ``wanted`` what is to be placed, ``place`` answers. ``gang`` makes blocks
of pod sets, ``solve`` decides over them: ``pack`` how different pods share nodes, ``domains`` who may stand
where in a topology. ``freed`` says what preemption gives back and whether the gang can use it, ``pools`` adds
nodes that an autoscaler would, ``preempt`` says whom kube-scheduler preempts, ``mended`` repairs broken
nodes, ``reasons`` says why nodes are refused.
"""
