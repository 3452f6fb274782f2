"""The admission webhook: advice as warnings, at submission. It allows everything, and fails open.

An ASGI app of its own on a port of its own: its caller is the API server of Kubernetes, which has no API key.
"""
