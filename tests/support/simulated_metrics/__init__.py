"""Frames of the simulator as samples: what Prometheus would hold after scraping the exporters. Begin at
``exposition``.
"""
