"""What the parts of the exporter hand to each other: readings, devices of the node, holders and shares. Pure.

``readings`` crosses the pipe from the driver process, which imports nothing else of gpucost: it imports
nothing either. ``holdings`` are devices, claims and shares. What must not live here: counters (``metering``),
I/O. Begin with ``readings``.
"""
