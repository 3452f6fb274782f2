"""The way to an API server: addresses, credentials, certificates, and two transports.

``in_cluster`` is built on the standard library alone, for the GPU exporter, which has little memory;
``connection`` finds the way as kubectl does, and goes it over httpx2. Neither knows what requests mean.
"""
