"""OpenCost's figures beside ours, and every difference under the name of its cause. Pure.

``compare`` is the way in; ``held_time`` brings both to the same pods and days; ``causes`` replaces one
ingredient after the other; ``output`` is the table and the terminal. What must not live here: the reading of
OpenCost (telemetry and pricing.opencost_prices).
"""
