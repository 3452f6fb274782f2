"""The second source: what a dcgm-exporter on the same node says about the GPUs.

The table of names and units is ``gpucost.contract.dcgm``. ``parse`` turns a text into values, ``state`` keeps
what is known and for how long, and ``endpoint`` is the only module that does I/O: a thread that fetches the
text. Nothing here asks who holds a GPU. From a row only the UUID of the GPU, the id of the MIG instance and
the value are taken; pod, container, job and host labels are never read: an idle GPU can carry those of the
exporter itself, a shared one those of any of its pods, and the host name may be anybody's.
"""
