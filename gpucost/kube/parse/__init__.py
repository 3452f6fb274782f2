"""The API's objects -> the types of ``gpucost.cluster``. Pure: one function per kind, from a dict.

A parser never trusts a field: one that makes no sense becomes a ``Flaw`` of its object and counts as not
given. Only an object without an identity raises.
"""
