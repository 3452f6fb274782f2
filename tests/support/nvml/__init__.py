"""A stand-in for the NVIDIA driver library: a real ``libnvidia-ml.so.1``, built from our own C source.

``build.build_double`` compiles it; ``driver.FakeDriver`` writes the state that it reports.
"""
