"""gpucost-gpu-exporter: counters of GPU time and energy, per GPU and per holder, that add up.

One per node. ``driver`` runs in a process of its own and is the only place that loads NVML, so that a driver
call that never returns cannot hold up anything else; ``model.readings`` cross over from it. ``kubelet``,
``node_pods`` and ``holders`` find the holders of devices, ``metering.process_owners`` the pods of processes;
``dcgm`` reads a dcgm-exporter as a second source. ``metering`` turns all of it into counters. Begin with
``exporter``. It imports ``gpucost.domain``, ``gpucost.contract``, ``gpucost.settings``, ``gpucost.cluster``
and ``gpucost.kube`` and nothing else of gpucost; never pandas, numpy or SQL.
"""
