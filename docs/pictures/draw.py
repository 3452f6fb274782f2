"""Draws what people see: ``python docs/pictures/draw.py [NAME...]`` writes the PNGs beside this file.

Each picture is drawn from the payload that is posted, in a look of our own that is near the service's: what
the payload does not say is not in the picture. Needs Chromium, Pillow and the project's development tools.
"""

from __future__ import annotations

import html
import re
import sys
import tempfile
from base64 import b64encode
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))

from markdown_it import MarkdownIt  # noqa: E402  # after the path to the project
from PIL import Image, ImageChops  # noqa: E402

from gpucost.detectors.engine.lifecycle import FindingLifeState  # noqa: E402
from gpucost.detectors.findings import WastePattern  # noqa: E402
from gpucost.domain.buckets import Waste  # noqa: E402
from gpucost.domain.scope import EVERYTHING  # noqa: E402
from gpucost.domain.time import HOUR_MS  # noqa: E402
from gpucost.notify.compose.digest import digest_brief  # noqa: E402
from gpucost.notify.compose.finding import of_life  # noqa: E402
from gpucost.notify.compose.links import MessageLinks  # noqa: E402
from gpucost.notify.compose.month import month_message  # noqa: E402
from gpucost.notify.compose.receipt import receipt_message  # noqa: E402
from gpucost.notify.message import NotificationMessage  # noqa: E402
from gpucost.notify.render import email, mattermost, plain, slack, teams  # noqa: E402
from gpucost.reports.digest.week_builder import scope_of  # noqa: E402
from gpucost.reports.digest.week_model import IsoWeek  # noqa: E402
from gpucost.reports.waste.waste_report import wasteful_jobs  # noqa: E402
from gpucost.service.notifications.digests import DigestScheduler  # noqa: E402
from gpucost.service.reporting.job_endings import end_in_source  # noqa: E402
from gpucost.service.wiring.demo_month import DemoMonth  # noqa: E402
from gpucost.service.wiring.ledger import build_reporting  # noqa: E402
from gpucost.simulator.cluster import DEMO_MONTH  # noqa: E402
from tests.support.chromium import screenshot  # noqa: E402
from tests.support.sample_messages import SAMPLES  # noqa: E402

WIDTH, TALLEST = 760, 3600
COLOURS = 128
PICTURES = {
    "finding": ("slack", "teams", "mattermost", "email", "plain"),
    "resolved": ("slack",),
    "alerts": ("mattermost",),
    "advice": ("teams",),
    "digest": ("slack", "teams", "mattermost", "email", "plain"),
    "platform": ("email", "plain"),
    "month": ("email",),
    "receipt": ("slack", "teams", "plain"),
}
WEEK = "2026-W43"
TEAMS = {"digest": "ranking", "platform": ""}
FROM_THE_DEMO = {*TEAMS, "finding", "resolved", "month", "receipt"}
"""These are the demo's own; the other messages are samples."""
LINKS = MessageLinks(
    "https://gpucost.example.com", "https://grafana.example.com", "https://runbooks.example.com"
)
MENTIONS = {
    "slack": "<!subteam^S012>",
    "teams": "On Call <oncall@example.com>",
    "mattermost": "@gpu-oncall",
    "plain": "",
    "email": "",
}
_MARKDOWN = MarkdownIt("commonmark", {"breaks": True}).enable(["strikethrough"])
_STYLE = """
* { box-sizing: border-box; } body { margin: 0; padding: 20px; background: #fff; color: #1d1c1d;
  font: 15px/1.47 "Helvetica Neue", Arial, "DejaVu Sans", sans-serif; font-size: 14px; }
p { margin: 0; } a { color: #1264a3; text-decoration: none; }
pre { margin: 0; white-space: pre-wrap; font: 12px/1.35 "DejaVu Sans Mono", monospace; }
.post { display: flex; gap: 10px; } .post > div:last-child { flex: 1; min-width: 0; }
.face { flex: none; width: 36px; height: 36px; border-radius: 6px; background: #2a6fbf; color: #fff;
  font: 700 15px/36px Arial, sans-serif; text-align: center; }
.who { font-weight: 700; } .app { font-size: 10px; background: #e8e8e8; color: #616061; padding: 1px 4px;
  border-radius: 3px; margin: 0 6px; } .when { font-size: 12px; color: #616061; font-weight: 400; }
.call { background: #fff1cf; color: #1264a3; border-radius: 3px; padding: 0 2px; }
"""


def main(names: list[str]) -> None:
    wanted = [
        (sample, service)
        for sample, services in PICTURES.items()
        for service in services
        if not names or {f"{sample}-{service}", sample, service} & set(names)
    ]
    messages = {**SAMPLES, **(_of_the_demo() if any(sample in FROM_THE_DEMO for sample, _ in wanted) else {})}
    for sample, service in wanted:
        _write(PAGES[service](messages[sample]), HERE / f"{sample}-{service}.png")


def _of_the_demo() -> dict[str, NotificationMessage]:
    """What ``gpucost serve`` would have told of the demo: digests of a week, the dearest idle allocation at
    the end of the month, before and after somebody did what the message says, and the month, closed."""
    with tempfile.TemporaryDirectory() as folder, DemoMonth.record(Path(folder)) as run:
        run.ingest(lambda *_: None)
        run.assess(lambda *_: None)
        run.detect(IsoWeek.parse(WEEK).window.end_ms)
        digesting = DigestScheduler(build_reporting(run.ledger, run.teams), run.teams.budgets, LINKS)
        weeks = {sample: digesting.week(IsoWeek.parse(WEEK), team) for sample, team in TEAMS.items()}
        found = {sample: digest_brief(week, LINKS) for sample, week in weeks.items() if week is not None}
        lives = [
            life for life in run.detect().lives if life.finding.draft.pattern is WastePattern.IDLE_ALLOCATION
        ]
        idle = max(lives, key=lambda life: life.finding.wasted.nano or 0)
        over = replace(idle, state=FindingLifeState.RESOLVED, closed_at_ms=idle.last_seen_ms + HOUR_MS)
        for sample, life in (("finding", idle), ("resolved", over)):
            notice = of_life(life, record_id=63, episode=1, links=LINKS, currency=run.currency)
            found[sample] = notice.message
        found["receipt"] = _receipt(run)
        run.ledger.close_month(DEMO_MONTH, author="finance", min_coverage=Fraction(0))
        found["month"] = month_message(run.report(), LINKS)
        return found


def _receipt(run: DemoMonth) -> NotificationMessage:
    """Of the job of the demo that lost most to preemption, as the recording knows its end."""
    reporting = build_reporting(run.ledger, run.teams)
    rows = wasteful_jobs(reporting.waste_inputs(EVERYTHING, DEMO_MONTH.window).lines, ())
    lost = max((row for row in rows if row.waste == Waste.PREEMPTED), key=lambda row: row.amount.nano or 0)
    answer = reporting.job(scope_of(lost.team), lost.job_uid)
    assert answer is not None
    receipt = reporting.receipt_of(answer.report, end_in_source(run.pipeline.source, answer.report))
    return receipt_message(receipt, LINKS, cluster=lost.cluster, team=lost.team)


def _write(page: str, png: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        source, shot = Path(folder) / "page.html", Path(folder) / "shot.png"
        source.write_text(page, encoding="utf-8")
        screenshot(source, shot, width=WIDTH, height=TALLEST)
        picture = Image.open(shot).convert("RGB")
    ground = Image.new("RGB", picture.size, picture.getpixel((0, TALLEST - 1)))
    box = ImageChops.difference(picture, ground).getbbox() or (0, 0, WIDTH, TALLEST)
    cut = picture.crop((0, 0, WIDTH, min(box[3] + 20, TALLEST)))
    cut.quantize(COLOURS, dither=Image.Dither.NONE).save(png, optimize=True)
    print(f"{png.name}: {png.stat().st_size // 1024} KiB")


def _page(style: str, body: str) -> str:
    return (
        f'<!DOCTYPE html><html><meta charset="utf-8"><style>{_STYLE}{style}</style><body>{body}</body></html>'
    )


def _post(when: str, body: str, app: str = "APP") -> str:
    return (
        '<div class="post"><div class="face">g</div><div>'
        f'<p class="who">gpucost<span class="app">{app}</span>'
        f'<span class="when">{when}</span></p>{body}</div></div>'
    )


# Slack

_SLACK = """
.block { margin-top: 8px; } .header { font-size: 18px; font-weight: 800; margin-top: 4px; }
.fields { display: grid; grid-template-columns: 1fr 1fr; gap: 8px 16px; }
hr { border: 0; border-top: 1px solid #ddd;
  margin: 14px 0 6px; } pre { background: #f8f8f8; border: 1px solid #ddd; border-radius: 4px; padding: 8px; }
.context { font-size: 12px; color: #616061; } .dot { display: inline-block; width: 14px; height: 14px;
  border-radius: 50%; margin-right: 4px; vertical-align: -1px; }
"""
_DOTS = {"🔴": "#dd2e44", "🟠": "#f4900c", "🟢": "#4fae3f", "🔵": "#3f8ee0"}


def _slack(message: NotificationMessage) -> str:
    payload = slack.render(message, mention=MENTIONS["slack"])
    return _page(_SLACK, _post("9:26 AM", "".join(map(_slack_block, payload["blocks"]))))


def _slack_block(block: dict[str, Any]) -> str:
    match block["type"]:
        case "header":
            return f'<div class="block header">{_slack_plain(block["text"]["text"])}</div>'
        case "divider":
            return "<hr>"
        case "context":
            words = "".join(_slack_plain(element["text"]) for element in block["elements"])
            return f'<div class="block context">{words}</div>'
    if "fields" in block:
        fields = "".join(f"<div>{_mrkdwn(field['text'])}</div>" for field in block["fields"])
        return f'<div class="block fields">{fields}</div>'
    return f'<div class="block">{_mrkdwn(block["text"]["text"])}</div>'


def _slack_plain(words: str) -> str:
    written = html.escape(html.unescape(words))
    for char, colour in _DOTS.items():
        written = written.replace(char, f'<span class="dot" style="background:{colour}"></span>')
    return written


def _mrkdwn(words: str) -> str:
    """What Slack shows: & < > are escaped in ``words`` already, so what is left of < is Slack's own."""
    if words.startswith("```"):
        return f"<pre>{words.removeprefix('```').removesuffix('```').strip()}</pre>"
    words = words.replace(MENTIONS["slack"], '<span class="call">@gpu-oncall</span>')
    words = re.sub(r"<(https?:[^|>]*)\|([^>]*)>", r'<a href="\1">\2</a>', words)
    words = re.sub(r"(?m)^\*(.+)\*$", r"<b>\1</b>", words)
    return words.replace("\n", "<br>")


# Microsoft Teams

_TEAMS = """
body { background: #f5f5f5; color: #242424; } .face { border-radius: 50%; background: #5b5fc7; }
.card { margin-top: 6px; background: #fff; border: 1px solid #e0e0e0; border-radius: 8px;
  padding: 12px 16px 14px; overflow: hidden; } .card > * + * { margin-top: 8px; }
.head { margin: -12px -16px 0; padding: 12px 16px; } .head p + p { margin-top: 4px; }
.attention { background: #fbeaec; } .warning { background: #fdf4e3; } .good { background: #e9f5e9; }
.accent { background: #ebf0fb; } .Large { font-size: 18px; } .Bolder { font-weight: 700; }
.Small { font-size: 12px; } .subtle { color: #616161; }
.line { border-top: 1px solid #e0e0e0; padding-top: 10px; }
table { border-spacing: 0; } td { padding: 1px 0; }
th { text-align: left; padding: 1px 18px 1px 0; vertical-align: top; white-space: nowrap; }
pre { background: #f5f5f5; border: 1px solid #e0e0e0; border-radius: 4px; padding: 8px; }
img { display: block; width: 100%; } .buttons { display: flex; gap: 8px; margin-top: 14px; flex-wrap: wrap; }
.buttons span { border: 1px solid #d1d1d1; border-radius: 4px; padding: 4px 12px; font-weight: 600; }
ul { margin: 0; padding-left: 20px; } .call { background: none; color: #5b5fc7; }
"""


def _teams(message: NotificationMessage) -> str:
    payload = teams.render(message, mention=MENTIONS["teams"])
    card = payload["attachments"][0]["content"]
    body = "".join(map(_element, card["body"]))
    buttons = "".join(f"<span>{html.escape(action['title'])}</span>" for action in card.get("actions", []))
    return _page(
        _TEAMS,
        _post("09:26", f'<div class="card">{body}<div class="buttons">{buttons}</div></div>', "Workflow"),
    )


def _element(element: dict[str, Any]) -> str:
    line = " line" if element.get("separator") else ""
    match element["type"]:
        case "Container":
            return f'<div class="head {element["style"]}">{"".join(map(_element, element["items"]))}</div>'
        case "FactSet":
            rows = (
                f"<tr><th>{_inline(fact['title'])}</th><td>{_inline(fact['value'])}</td></tr>"
                for fact in element["facts"]
            )
            return f'<table class="{line}">{"".join(rows)}</table>'
        case "CodeBlock":
            return f'<pre class="{line}">{html.escape(element["codeSnippet"])}</pre>'
        case "Image":
            return f'<img class="{line}" src="{element["url"]}">'
    kinds = (
        f"{element.get('size', '')} {element.get('weight', '')}{' subtle' if element.get('isSubtle') else ''}"
    )
    at, called, rest = element["text"].rpartition("</at>")
    written = _MARKDOWN.render(rest)
    if called:
        name = html.escape(at.removeprefix("<at>"))
        written = written.replace("<p>", f'<p><span class="call">{name}</span> ', 1)
    return f'<div class="{kinds}{line}">{written}</div>'


def _inline(words: str) -> str:
    return _MARKDOWN.renderInline(words)


# Mattermost

_MATTERMOST = """
body { color: #3f4350; } .face { border-radius: 50%; } h4 { margin: 2px 0 0; font-size: 16px; }
.attachment { border-left: 4px solid #ccc; border-radius: 4px; padding: 6px 0 6px 12px; margin-top: 8px;
  box-shadow: inset 0 0 0 1px #e3e4e8; padding-right: 12px; } .title { font-weight: 700; margin-bottom: 2px; }
.fields { display: grid; grid-template-columns: 1fr 1fr; gap: 8px 16px; } .fields b { display: block; }
pre { background: #f4f4f6; border-radius: 4px; padding: 8px; } ul { margin: 0; padding-left: 20px; }
.footer { font-size: 12px; color: #6c7080; margin-top: 4px; } .call { background: #fff4d6; color: #1c58d9; }
a { color: #1c58d9; } .bare { border: 0; box-shadow: none; padding: 0; }
"""


def _mattermost(message: NotificationMessage) -> str:
    payload = mattermost.render(message, mention=MENTIONS["mattermost"])
    told = _MARKDOWN.render(payload["text"])
    told = told.replace(MENTIONS["mattermost"], f'<span class="call">{MENTIONS["mattermost"]}</span>')
    return _page(
        _MATTERMOST, _post("9:26 AM", told + "".join(map(_attachment, payload["attachments"])), "BOT")
    )


def _attachment(part: dict[str, Any]) -> str:
    title = f'<div class="title">{_inline(part["title"])}</div>' if "title" in part else ""
    fields = "".join(
        f"<div><b>{_inline(field['title'])}</b>{_inline(field['value'])}</div>"
        for field in part.get("fields", [])
    )
    grid = f'<div class="fields">{fields}</div>' if fields else ""
    footer = f'<div class="footer">{html.escape(part["footer"])}</div>' if part.get("footer") else ""
    colour = f' style="border-left-color:{part["color"]}"' if "color" in part else ""
    return (
        f'<div class="attachment"{colour}>{title}{_MARKDOWN.render(part.get("text", ""))}{grid}{footer}</div>'
    )


# Mail and plain text

_TERMINAL = """
body { background: #fff; } .window { background: #16191d; border-radius: 8px; overflow: hidden; }
.window::before { content: "● ● ●"; display: block; color: #5b6470; padding: 6px 14px; font-size: 13px; }
.window pre { color: #e8eaed; padding: 4px 20px 20px; font-size: 13px; }
"""


def _email(message: NotificationMessage) -> str:
    mail = email.render(message, mention=MENTIONS["email"])
    page = mail.html
    for picture in mail.pictures:
        page = page.replace(f"cid:{picture.cid}", f"data:image/png;base64,{b64encode(picture.png).decode()}")
    return page


def _plain(message: NotificationMessage) -> str:
    return _page(_TERMINAL, f'<div class="window"><pre>{html.escape(plain.render(message))}</pre></div>')


PAGES: dict[str, Callable[[NotificationMessage], str]] = {
    "slack": _slack,
    "teams": _teams,
    "mattermost": _mattermost,
    "email": _email,
    "plain": _plain,
}

if __name__ == "__main__":
    main(sys.argv[1:])
