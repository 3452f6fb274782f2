"""What every gpucost process shares: settings and their page, the log, certificates of listeners.

The settings themselves stand with the process they belong to.
"""
