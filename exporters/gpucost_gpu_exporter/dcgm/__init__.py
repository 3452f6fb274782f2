"""The second source: a dcgm-exporter on the same node, with its figures for the GPUs.

The table of names and units is ``gpucost.contract.dcgm``. ``scrapes`` turns a text into values and keeps what
is known and for how long, and ``endpoint`` is the only module that does I/O: a thread that fetches the text.
Begin with ``endpoint``. What must not live here: holders of GPUs. From a row only the UUID of the GPU, the id
of the MIG instance and the value are taken; pod, container, job and host labels are never read: an idle GPU
can carry those of the exporter itself, a shared one those of any of its pods, and the host name may be that
of any host.
"""
