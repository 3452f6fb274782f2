"""gpucost-gpu-exporter: counters of GPU time and energy, per GPU and per holder, that add up.

One per node. ``driver`` runs in a process of its own and is the only place that loads NVML, so that a
driver call that never returns cannot hold up anything else; ``readings`` cross over from it. ``kubelet``,
``pods`` and ``processes`` say who holds what; ``dcgm`` reads a dcgm-exporter as a second source.
``accounts`` turns all of it into counters. It imports ``gpucost.domain``, ``gpucost.contract``,
``gpucost.settings``, ``gpucost.cluster`` and ``gpucost.kube`` and nothing else of gpucost; never pandas,
numpy or SQL.
"""
