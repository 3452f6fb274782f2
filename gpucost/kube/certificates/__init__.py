"""Certificates of the webhook that gpucost makes itself, keeps in a Secret, and renews.

``pair`` makes and judges them, ``kept`` is what the Secret holds; both pure. ``objects`` asks the API server,
``keeper`` does what is to be done.
"""
