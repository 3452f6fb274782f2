"""The driver process, the only code that loads NVML: run as ``python -m gpucost_gpu_exporter.driver``.

One request per line on stdin, one reply per line on stdout, both JSON, and a line for each XID event between
the replies; ``driver_link`` is the other end. A call into the driver can hang for ever and cannot be
interrupted, so this process holds no state that cannot be lost: the parent kills it and starts another. It
imports nvidia-ml-py, ``model.readings`` and the standard library only, and stays small. It never creates a
CUDA context and never changes a setting of the driver (accounting, GPM streaming), so that watching a GPU
does not keep it awake.

``calls`` sorts errors, ``node`` finds the GPUs and collects their XID events, ``gpus`` reads one GPU, its
MIG instances and its processes, and ``activity`` what they did: busy time, SM and tensor activity, and
throttling. Begin with ``node``.
"""
