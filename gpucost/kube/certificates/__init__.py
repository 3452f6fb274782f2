"""The certificate of the webhook, which gpucost makes itself, keeps in a Secret, and renews.

``certificate_pair`` makes and checks certificates and interprets the Secret, pure; ``keeper`` calls the API
server and acts. What must not live here: serving (``gpucost.api.webhook``). Begin with ``keeper``.
"""
