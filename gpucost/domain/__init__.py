"""Pure types of the problem: time, money, GPU units and shares, holders, job kinds, errors.

What may live here: value types, integer arithmetic, parsing of names, labels and configuration text.
What must not: I/O of any kind, clocks, pandas, anything that knows of Prometheus, SQL or HTTP.
The exporters import this package, so it must stay as light as it is.
"""
