"""Tokens of Kubernetes itself, checked by the API server in a TokenReview.

No layer below imports this module, and neither do the exporters.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any, Generic, Protocol, TypeVar

from gpucost.access.authenticator import AccessDenied, CheckUnavailable, NotGranted
from gpucost.access.grants import GroupGrants, is_plain, known_groups
from gpucost.access.principal import AuthenticationMethod, Principal
from gpucost.access.token_claims import MOST_TOKEN_BYTES
from gpucost.kube.connect.credentials import is_header_text
from gpucost.kube.connect.transport import KubeResponse, TransportError

T = TypeVar("T")
PATH = "/apis/authentication.k8s.io/v1/tokenreviews"
TIMEOUT_S = 5.0
"""The time limit of each wait on the API server: a client waits for the result."""
MOST_KEPT = 4_096
"""How many answers of each kind are kept. Refused tokens are kept apart: a flood of them drops no valid
one."""
_ANSWERED = (200, 201)


class TokenReviewSender(Protocol):
    """The part of ``HttpxTransport`` that is needed."""

    def send(self, method: str, path: str, timeout_s: float, body: bytes, content_type: str) -> KubeResponse:
        """Raises ``TransportError``."""

    def close(self) -> None:
        """Close all connections."""


class KubernetesTokens:
    """A ``TokenChecker``. Threads may share one.

    A token must be for one of ``audiences``. An answer, positive or negative, is kept for ``keep_ms``, by the
    token's SHA-256; no token is kept.
    """

    def __init__(
        self, transport: TokenReviewSender, audiences: Sequence[str], grants: GroupGrants, keep_ms: int
    ) -> None:
        self._transport, self._audiences, self._grants = transport, tuple(audiences), grants
        self._accepted, self._refused = _Kept[Principal](keep_ms), _Kept[AccessDenied](keep_ms)

    def must_ask(self, token: str, now_ms: int) -> bool:
        """Whether no answer is kept, so that the API server must be asked."""
        if _is_no_token(token):
            return False
        digest = _digest(token)
        return self._accepted.get(digest, now_ms) is None and self._refused.get(digest, now_ms) is None

    def check(self, token: str, now_ms: int) -> Principal | None:
        """Never None: the API server is the last checker and knows every token. Raises AccessDenied and
        CheckUnavailable; the latter is not kept."""
        if _is_no_token(token):
            raise AccessDenied("this is no token")
        digest = _digest(token)
        if (principal := self._accepted.get(digest, now_ms)) is not None:
            return principal
        if (denied := self._refused.get(digest, now_ms)) is not None:
            raise type(denied)(str(denied))
        try:
            principal = self._principal(self._review(token))
        except AccessDenied as error:
            # A copy: what is raised has a traceback, and with it the token.
            self._refused.put(digest, type(error)(str(error)), now_ms)
            raise
        self._accepted.put(digest, principal, now_ms)
        return principal

    def close(self) -> None:
        """Closes the connections to the API server."""
        self._transport.close()

    def _review(self, token: str) -> Mapping[str, Any]:
        document = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token, "audiences": list(self._audiences)},
        }
        body = json.dumps(document).encode()
        try:
            with closing(self._transport.send("POST", PATH, TIMEOUT_S, body, "application/json")) as response:
                status = response.status
                answer = response.read_json() if status in _ANSWERED else None
        except TransportError as error:
            why = f"the API server does not answer ({error.reason})"
            raise CheckUnavailable(why) from None
        if status not in _ANSWERED:
            hint = ": may this account create tokenreviews?" if status in (401, 403) else ""
            raise CheckUnavailable(f"the API server answered {status}{hint}")
        found = answer.get("status") if isinstance(answer, dict) else None
        if not isinstance(found, dict):
            raise CheckUnavailable("the API server answered with no TokenReview")
        return found

    def _principal(self, status: Mapping[str, Any]) -> Principal:
        if status.get("authenticated") is not True:
            raise AccessDenied("the API server does not know the token")
        compatible = status.get("audiences")
        # A server without support for audiences answers with none. The token is then valid for the API server
        # itself, and any service that received it could pass for its owner here.
        if not isinstance(compatible, list) or not any(each in self._audiences for each in compatible):
            raise AccessDenied("the token is for another audience")
        user = status.get("user")
        name = user.get("username") if isinstance(user, dict) else None
        if not isinstance(user, dict) or not isinstance(name, str) or not is_plain(name):
            raise AccessDenied("the API server gives the token's owner no name")
        principal = self._grants.principal(
            name, known_groups(user.get("groups")), AuthenticationMethod.KUBERNETES
        )
        if principal is None:
            raise NotGranted(f"no grant fits {AuthenticationMethod.KUBERNETES}:{name}")
        return principal


def _is_no_token(token: str) -> bool:
    return len(token) > MOST_TOKEN_BYTES or not is_header_text(token)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


class _Kept(Generic[T]):
    """Recent answers: at most ``MOST_KEPT``, the least recently used are dropped first."""

    def __init__(self, keep_ms: int) -> None:
        self._keep_ms = keep_ms
        self._lock = threading.Lock()
        self._held: OrderedDict[bytes, tuple[int, T]] = OrderedDict()

    def get(self, digest: bytes, now_ms: int) -> T | None:
        with self._lock:
            since_ms, found = self._held.get(digest, (0, None))
            # A clock that was set back must not let an answer live longer.
            if found is None or not 0 <= now_ms - since_ms < self._keep_ms:
                return None
            self._held.move_to_end(digest)
            return found

    def put(self, digest: bytes, found: T, now_ms: int) -> None:
        with self._lock:
            self._held[digest] = (now_ms, found)
            self._held.move_to_end(digest)
            while len(self._held) > MOST_KEPT:
                self._held.popitem(last=False)
