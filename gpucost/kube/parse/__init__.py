"""Parsers of the API's objects into the types of ``gpucost.cluster.objects``. Pure: one function per kind,
from a dict.

A parser never trusts a field: an invalid one becomes a ``FieldFlaw`` of its object and counts as missing.
Only an object without an identity raises. What must not live here: I/O. Begin with ``collections``, which
names the parser of every kind, and ``fields``, which all of them use.
"""
