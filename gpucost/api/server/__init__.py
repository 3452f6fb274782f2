"""What every request passes through, and what routes are given.

What may live here: listener, connections, middleware, authentication, limits, the one error shape.
What must not: routes; it imports none of its siblings.
Begin with ``services.ApiServices``, then ``authentication``.
``errors`` is the shape of every refusal.
"""
