"""Settings become parts that work together; the only place that knows all of them.

What may live here: builders, the configuration as read from files, whole runs without a service.
What must not: behaviour; a builder builds.
Begin with ``assembly``.
``configuration`` is read again on a reload.
"""
