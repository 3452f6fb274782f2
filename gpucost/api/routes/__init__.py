"""The routes, one module a topic, with what they read of requests and write into responses.

What may live here: parameters, bodies, pages, formats.
What must not: SQL, PromQL, arithmetic on money.
Begin with ``allocations``; ``app`` includes the routers in an order that OpenAPI shows.
``requests`` refuses unknown parameters by name.
"""
