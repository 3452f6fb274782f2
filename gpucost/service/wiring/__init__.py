"""Builders that make working parts from the settings; the only place that imports all of them.

What may live here: builders, the configuration as read from files, whole runs without a service. What must
not: behaviour; a builder builds. Begin with ``pipeline.build_pipeline``, then ``source.open_source``.
``configuration`` is read again on a reload.
"""
