"""FastAPI: routes, parameters, principals, the one error shape. An unknown parameter is refused by name.

What may live here: HTTP. What must not: SQL, PromQL, or arithmetic on money.
"""
