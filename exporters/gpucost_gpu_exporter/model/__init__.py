"""What the parts of the exporter hand to each other: readings of GPUs, devices of the node, who holds which
share. Pure.

``readings`` crosses the pipe from the driver process, which imports nothing else of ours: it imports nothing
either. What must not live here: counters (``metering``), I/O. Begin with ``readings``.
"""
