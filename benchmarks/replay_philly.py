"""Two months of real work through a real Prometheus: Philly's jobs, window by window, into the ledger.

Microsoft's Philly trace (149 nodes of 8 GPUs, 68,503 jobs) becomes the metric contract, scraped every minute
as Prometheus does by default, and TSDB blocks of it; gpucost reads every window and writes it to SQLite.
GPU-hours per virtual cluster stand beside the independent totals of the trace: the difference is 0 ms.

    python benchmarks/replay_philly.py [--days 61] [--window 15m|1h|1d] [--batch 1d] [--kill 10] [--keep DIR]

Windows are read a day at a time, as the service does when it catches up; --batch 1h reads them one by one,
as it does when it is up to date, and asks Prometheus for more.

The baseline are the same requests, sent over one plain connection to the same server in the same run, their
answers read and thrown away. gpucost's own time is its wall time less its waiting for Prometheus; its CPU
time and the server's stand beside, as they suffer less from a busy machine. With --kill, the process is
killed so many times at random moments, and ends with the same totals and the same digest of the month.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from benchmarks.support import replay
from benchmarks.support.blocks import build_blocks
from benchmarks.support.philly import ALL_DAYS, DEFAULT_TRACES, GPUS_PER_NODE, START_MS, Philly
from gpucost.domain.errors import InputError
from gpucost.domain.time import DAY_MS, HOUR_MS, Window, parse_duration
from tests.support.prometheus import running_prometheus

LIMITS = {"own/bare": 0.5, "peak_rss_mb": 1000}


def main() -> None:
    args = _arguments()
    place = nullcontext(str(args.keep)) if args.keep else tempfile.TemporaryDirectory()
    with place as folder:
        figures = run(args, Path(folder))
    ratios = {
        "own/bare": round(figures["own_s"] / figures["bare_s"], 3),
        "own_cpu/bare": round(figures["own_cpu_s"] / figures["bare_s"], 3),
        "own_cpu/server_cpu": round(figures["own_cpu_s"] / figures["bare_server_cpu_s"], 3),
    }
    differs = figures["difference_ms"] or figures["conservation_ms"] or figures.get("killed_differs", 0)
    found = {**figures, **ratios}
    holds = not differs and all(found[name] <= limit for name, limit in LIMITS.items())
    print(
        json.dumps(
            {"name": "replay_philly", "figures": figures, "ratios": ratios, "limits": LIMITS, "holds": holds}
        )
    )


def run(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    philly = Philly.load(args.traces)
    span = Window(START_MS, START_MS + args.days * DAY_MS)
    data = folder / "blocks"
    build_s = _build(philly, args.days, args.scrape, data)
    ledger, queries = folder / "ledger.db", folder / "queries"
    _remove(ledger)
    # Without compaction in the background, which would be billed to the process that runs at that time.
    with running_prometheus(data, "--storage.tsdb.max-block-duration=1d") as url:
        print(f"{span}: windows of {args.window // 60_000} min …", flush=True)
        child = replay.ingest(url, ledger, span, args.window, batch_ms=args.batch, queries=queries)
        cpu_before = replay.server_cpu_s(url)
        bare_s = replay.bare_queries(url, queries)
        server_cpu_s = replay.server_cpu_s(url) - cpu_before
        found = replay.totals(ledger, span)
        killed = _killed(args, url, folder / "killed.db", span, found) if args.kill else {}
    difference = _print_table(philly, args.days, found)
    capacity_ms = len(philly.node_names()) * GPUS_PER_NODE * span.length_ms
    return {
        "days": args.days,
        "windows": child["windows"],
        "window_min": args.window // 60_000,
        "batch_min": args.batch // 60_000,
        "jobs": int((philly.jobs["start_s"] * 1000 < span.length_ms).sum()),
        "scrape_s": args.scrape / 1000,
        "difference_ms": difference,
        "conservation_ms": sum(found.buckets_ms.values()) - capacity_ms,
        "digests": found.digests,
        "build_s": round(build_s, 1),
        "queries": child["queries"],
        "answered_mb": round(child["bytes"] / 1e6, 1),
        "wall_s": round(child["wall_s"], 2),
        "waited_s": round(child["waited_s"], 2),
        "own_s": round(child["wall_s"] - child["waited_s"], 2),
        "own_cpu_s": round(child["cpu_s"], 2),
        "bare_s": round(bare_s, 2),
        "bare_server_cpu_s": round(server_cpu_s, 2),
        "peak_rss_mb": round(child["peak_rss_mb"]),
        "peak_rss_driver_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "peak_rss_largest_child_mb": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024,
        **killed,
    }


def _build(philly: Philly, days: int, scrape_ms: int, data: Path) -> float:
    began_s = time.monotonic()
    if data.exists():
        print(f"blocks are there already: {data}")
        return 0.0
    frames = philly.frames(days)
    observed = frames.observed
    scraped = Window(int(observed["start_ms"].iloc[0]), int(observed["end_ms"].iloc[0]))

    def done(share: float) -> None:
        print(f"\rblocks: {share:4.0%}", end="" if share < 1 else "\n", file=sys.stderr, flush=True)

    build_blocks(frames, scraped, scrape_ms, data, done)
    return time.monotonic() - began_s


def _killed(
    args: argparse.Namespace, url: str, ledger: Path, span: Window, unkilled: replay.Totals
) -> dict[str, Any]:
    _remove(ledger)
    print(f"once more, killed {args.kill} times …", flush=True)
    written = replay.ingest_killed(url, ledger, span, args.window, args.kill, args.seed)
    found = replay.totals(ledger, span)
    print(f"killed after {', '.join(map(str, written))} windows; digests {', '.join(found.digests)}")
    return {"kills": len(written), "killed_differs": int(found != unkilled)}


def _print_table(philly: Philly, days: int, found: replay.Totals) -> int:
    """GPU-hours beside the reference; returns the largest difference in ms."""
    whole = days == ALL_DAYS
    expected = philly.reference_ms() if whole else philly.expected_ms(days)
    print(f"{'virtual cluster':<16}{'GPU-hours':>16}{'reference':>16}{'difference ms':>16}")
    worst = 0
    for vc, expected_ms in expected.items():
        held_ms = found.held_ms.get(vc, 0)
        worst = max(worst, abs(held_ms - expected_ms))
        print(
            f"{vc:<16}{held_ms / HOUR_MS:>16,.4f}{expected_ms / HOUR_MS:>16,.4f}{held_ms - expected_ms:>16}"
        )
    total_ms, reference_ms = sum(found.held_ms.values()), sum(expected.values())
    print(f"{'total':<16}{total_ms / HOUR_MS:>16,.4f}{reference_ms / HOUR_MS:>16,.4f}", end="")
    print(f"{total_ms - reference_ms:>16}")
    print(f"reference: {'reference.json' if whole else 'plain arithmetic on the rows of the trace'}")
    return max(worst, abs(total_ms - reference_ms))


def _remove(ledger: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        ledger.with_name(ledger.name + suffix).unlink(missing_ok=True)


def _duration(text: str) -> int:
    try:
        return parse_duration(text)
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--days", type=int, default=ALL_DAYS, choices=range(1, ALL_DAYS + 1), metavar="1-61")
    parser.add_argument("--window", type=_duration, default=HOUR_MS, help="15m, 1h (default) or 1d")
    parser.add_argument(
        "--batch", type=_duration, default=DAY_MS, help="read at once, 1d as the service does"
    )
    parser.add_argument("--scrape", type=_duration, default=60_000, help="scrape interval, 1m by default")
    parser.add_argument("--traces", type=Path, default=DEFAULT_TRACES, help="the folder that has philly-vc")
    parser.add_argument("--kill", type=int, default=0, metavar="N", help="then once more, killed N times")
    parser.add_argument("--seed", type=int, default=7, help="of the moments of killing")
    parser.add_argument(
        "--keep", type=Path, help="a folder for blocks and ledgers; blocks there are used again"
    )
    args = parser.parse_args()
    if not (args.traces / "philly-vc").is_dir():
        parser.error(f"--traces: {args.traces} has no folder philly-vc")
    return args


if __name__ == "__main__":
    main()
