"""A month in which every name is an attack: a cluster, what people write of it, and who waits in it."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

from gpucost.access.keys import KeyRecord, hash_secret
from gpucost.access.principal import AccessRole
from gpucost.domain.scope import EVERYTHING
from gpucost.domain.time import Month
from gpucost.ledger.ledger import Ledger
from gpucost.notify.message import NotificationMessage
from gpucost.notify.notices import Conversation, DeliveryAct, NoticeDelivery, NoticeKind
from tests.cli.findings_worlds import NOW_MS
from tests.cli.state_worlds import cluster
from tests.detectors.worlds import H100, World
from tests.support.objects import kueue
from tests.support.poison import POISONS

MONTH = "2026-10"
ALIKE = ("namespace", "pod", "workload", "queue", "cluster_queue", "flavor", "project", "user")


def world() -> World:
    """A pod on a GPU of its own for each poison, which every name of it is; another waits."""
    found = World(end=24 * 60)
    for at, text in enumerate(POISONS):
        node = f"n{at // 8}"
        if at % 8 == 0:
            found.node(node, product=H100 if at < 16 else f"L4 {text}", pool=text)
        uid = f"uid-{at} {text}"
        found.pod(
            uid, node, 60, job=text, team=text, namespace=text, queue=text, cluster_queue=text, user=text
        )
        row = found.rows["allocations"][-1]
        row.update(dict.fromkeys(ALIKE, text), pod_uid=uid, job_uid=f"job-{at} {text}", job_kind=text)
        found.work(uid, node, f"GPU-{at}", [0.0] * (23 * 12), start=60, memory=2**30)
        found.waits(
            f"wait {text}", 0, 60, team=text, namespace=text, queue=text, cluster_queue=text, reason=text
        )
        found.quota(text, 8, 1, cohort=text, flavor=text)
    return found


def contracts() -> str:
    """One contract for everything, with markup in its name."""
    name = json.dumps("[bold]c[/]")
    times = "start: 2026-10-01T00:00:00Z, end: 2026-11-01T00:00:00Z"
    one = f"{{id: {name}, kind: reservation, {times}, gpus: 1, price: 1}}"
    return f"version: 1\ncurrency: USD\ncontracts: [{one}]\n"


def say(folder: Path) -> None:
    """What people write: notes, reasons, authors, references, titles of messages."""
    text = "".join(POISONS[:-1]).replace("z" * 400, "")[:900]
    month, later = Month.parse(MONTH), Month.parse(MONTH).next().window.start_ms
    with Ledger.open(f"sqlite:///{folder / 'ledger.db'}", now=lambda: later) as ledger:
        for at, record in enumerate(ledger.findings(EVERYTHING, limit=len(POISONS))):
            assert record.id is not None
            ledger.acknowledge(EVERYTHING, record.id, POISONS[at], text)
            if at % 2:
                ledger.mute(EVERYTHING, record.id, POISONS[at], later + 10**8, text)
        talk = Conversation("ops", text[:500], text[:200], NoticeKind.FINDING, text[:200], "1", NOW_MS)
        ledger.tell(
            [talk],
            [
                NoticeDelivery(
                    "ops", text[:500], DeliveryAct.OPEN, NotificationMessage(text, text), NOW_MS, NOW_MS
                )
            ],
        )
        for each in ledger.due_posts(NOW_MS, ("ops",), 10):
            ledger.post_dead(each.post.id, NOW_MS, text)
        ledger.close_month(month, author=text[:200], reason=text, min_coverage=Fraction(0))
        for at, word in enumerate(POISONS):
            ledger.adjust(month, word, 10**9, 0, word, word, f"{word} {at}")
        for at, word in enumerate(POISONS):
            record = KeyRecord(
                f"key-{at}",
                hash_secret("s"),
                AccessRole.VIEWER,
                frozenset({word}),
                frozenset({word}),
                created_ms=NOW_MS,
                created_by=word,
                note=word,
            )
            ledger.add_key(record)


def hostile_cluster() -> dict[str, Any]:
    """A cluster whose jobs are ahead of ours, with names that an API server would not take."""
    items = list(cluster())
    evil = [each for each in items if "evil" in json.dumps(each["metadata"])]
    assert len(evil) == 3
    items = [each for each in items if each not in evil]
    for at, text in enumerate(POISONS):
        for each in evil:
            made = json.loads(json.dumps(each).replace("evil", f"evil-{at}").replace("train-3", f"t-{at}"))
            items.append(_renamed(made, {f"evil-{at}": text, "nowhere": "gpus"}))
        items.append(kueue.local_queue("gpus", "nlp", namespace=text))
    return {"apiVersion": "v1", "kind": "List", "items": items}


def _renamed(found: Any, names: dict[str, str]) -> Any:
    if isinstance(found, dict):
        return {key: _renamed(value, names) for key, value in found.items()}
    if isinstance(found, list):
        return [_renamed(value, names) for value in found]
    if isinstance(found, str) and "owned" in found:
        return names[next(iter(names))]
    return names.get(found, found) if isinstance(found, str) else found
