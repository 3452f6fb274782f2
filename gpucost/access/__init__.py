"""Who asks, and what they may: principals, roles, API keys, OIDC tokens, and what groups are granted.

Nothing here knows HTTP routes or the ledger. What is looked up elsewhere (stored keys, a TokenReview of
Kubernetes) comes in through the small protocols of ``authenticator``; only ``fetching`` does
I/O, and that only with the issuer of the settings.
"""
