"""The Kubernetes API: list and watch, objects kept by uid. The only place that speaks to an API server.

What it gives out are the API's own dicts, trimmed; parsing them is for whoever asks.
"""
