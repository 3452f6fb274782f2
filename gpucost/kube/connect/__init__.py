"""Connections to an API server: addresses, credentials, certificates, two transports, and reviews of tokens.

``connection`` finds the address and credentials as kubectl does and connects over httpx2; ``http_transport``
is built on the standard library alone, for the GPU exporter, which has little memory. What must not live
here: what requests mean (``watch``, ``parse``). Begin with ``transport``, the protocol of both.
"""
