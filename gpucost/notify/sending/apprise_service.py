"""Every other service, through apprise (the extra ``chat``), in a process of its own.

Apprise has its own connections, redirects and time limits. In a process of its own all of it can be ended in
time, and every connection that it makes passes the same check of addresses as ours; see apprise_child.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys

from gpucost.notify.channels import NotificationChannel
from gpucost.notify.notices import NoticeDelivery
from gpucost.notify.render import plain
from gpucost.notify.sending.delivery import Refused, Retry

TOTAL_S = 40.0
"""For a whole delivery. Starting the process and loading all of apprise takes some of it."""
MISSING = "apprise is not installed: pip install 'gpucost[chat]'"
_PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "PYTHONPATH", "SSL_CERT_FILE", "SSL_CERT_DIR", "TMPDIR")


def deliver(channel: NotificationChannel, post: NoticeDelivery, *, total_s: float = TOTAL_S) -> str:
    """Post it; there is no reference."""
    if importlib.util.find_spec("apprise") is None:
        raise Refused(MISSING)
    assert channel.url is not None
    asked = {
        "url": channel.url.get_secret_value(),
        "body": plain.render(post.message, mention=channel.mention, chat=True),
        "allow_http": channel.allow_http,
        "allow_private": channel.allow_private,
    }
    # The URL is a secret and goes through the pipe; arguments are visible to all users of the machine.
    # Proxies of the environment are not passed on: the addresses that are checked must be the real ones.
    command = [sys.executable, "-P", "-m", "gpucost.notify.sending.apprise_child"]
    environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    # Otherwise it would send the passwords of ~/.netrc to the hosts they are for.
    environment["NETRC"] = os.devnull
    try:
        ran = subprocess.run(
            command,
            input=json.dumps(asked),
            capture_output=True,
            text=True,
            timeout=total_s,
            env=environment,
            check=False,
        )
        answer = json.loads(ran.stdout.rpartition("\n")[2] or ran.stdout)
        outcome, why = str(answer["outcome"]), str(answer["why"])
    except subprocess.TimeoutExpired:
        raise Retry(f"apprise: not done within {total_s:g} s") from None
    except (OSError, ValueError, KeyError, TypeError):
        raise Retry("apprise: its process ended without an answer") from None
    if outcome == "refused":
        raise Refused(f"apprise: {why}")
    if outcome != "sent":
        raise Retry(f"apprise: {why}")
    return ""
