"""Authentication and authorization: principals, roles, API keys, OIDC tokens, and grants of groups.

What may live here: tokens and keys, their checks, and the scope that follows. What must not: HTTP routes and
the ledger. Data from elsewhere (stored keys, a TokenReview of Kubernetes) comes in through the small
protocols of ``authenticator``; only ``issuer_keys`` does I/O, and that only with the issuer of the settings.
Begin with ``authenticator.Authenticator``.
"""
