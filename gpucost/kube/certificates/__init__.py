"""The certificate of the webhook that gpucost makes itself, keeps in a Secret, and renews.

``certificate_pair`` makes and judges certificates and says what the Secret means, pure; ``keeper`` asks the
API server and does what is to be done. What must not live here: serving (``gpucost.api.webhook``). Begin
with ``keeper``.
"""
