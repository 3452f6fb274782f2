"""Draws two dashboards: ``python docs/pictures/draw_dashboards.py FOLDER`` writes ``dashboards.png`` beside
this file; ``python -m tests.support.demo_prometheus FOLDER`` has made the folder.

Not a picture of Grafana: the first rows of the boards in ``dashboards/generated``, every panel where its JSON
puts it, by its own queries, answered by a real Prometheus that holds three hours of the demo. Lines and
tables are drawn here, plainer than Grafana's. Needs Chromium, Prometheus and the project's development tools.
"""

from __future__ import annotations

import html
import io
import json
import re
import sys
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))

from PIL import Image  # noqa: E402  # after the path to the project

from tests.support.browser import running_browser  # noqa: E402
from tests.support.demo_prometheus import DemoPrometheus  # noqa: E402
from tests.support.prometheus import running_prometheus  # noqa: E402

BOARDS = {"gpucost-fleet": 32, "gpucost-queues": 23}
"""Each with the row of the grid that it is drawn down to."""
CELL, ROW, GAP, COLOURS = 58, 34, 8, 64
STEP_S, MOST_ROWS = 300, 7
PALETTE = ("#73bf69", "#f2cc0c", "#8ab8ff", "#ff780a", "#f2495c", "#5794f2", "#b877d9", "#ca95e5")
VARIABLES = {
    "$__rate_interval": "15m",
    "$__range": "3h",
    "$__interval": "5m",
    "$cluster": ".*",
    "$queue": ".*",
    "$resource": ".*",
}
STYLE = f"""body {{ margin: 0; background: #111217; color: #ccccdc; font: 13px "DejaVu Sans", sans-serif; }}
h1 {{ font-size: 18px; margin: 12px {GAP}px 4px; }} .board {{ position: relative; width: {24 * CELL}px; }}
.panel {{ position: absolute; background: #181b1f; border: 1px solid #2c3235; border-radius: 3px;
overflow: hidden; }} .panel h2 {{ font-size: 12px; margin: 5px 8px; font-weight: 600; }}
.row {{ position: absolute; font-weight: 600; font-size: 14px; padding: 8px; }}
.stat {{ font-size: 30px; text-align: center; margin-top: 8px; color: #73bf69; }}
table {{ border-spacing: 0; width: 100%; font-size: 12px; }} th {{ text-align: left; color: #8e8e9c; }}
th, td {{ padding: 4px 8px; border-bottom: 1px solid #22252b; }} .legend {{ font-size: 10.5px;
padding: 0 8px; }} .bar {{ height: 13px; }} .bars td {{ border: 0; padding: 3px 8px; }}"""


def main(folder: Path) -> None:
    with running_prometheus(folder / "data") as url, running_browser() as browser:
        prometheus = DemoPrometheus(url)
        page = browser.new_page(viewport={"width": 24 * CELL, "height": 800})
        boards = "".join(_board(name, down_to, prometheus) for name, down_to in BOARDS.items())
        page.set_content(f"<style>{STYLE}</style>{boards}")
        shot = Image.open(io.BytesIO(page.screenshot(full_page=True)))
    file = HERE / "dashboards.png"
    shot.convert("RGB").quantize(COLOURS).save(file, optimize=True)
    print(file.name, f"{file.stat().st_size:,} bytes")


def _board(name: str, down_to: int, prometheus: DemoPrometheus) -> str:
    board = json.loads((HERE.parents[1] / "dashboards" / "generated" / f"{name}.json").read_text("utf-8"))
    panels = [each for each in board["panels"] if each["gridPos"]["y"] + each["gridPos"]["h"] <= down_to]
    drawn = "".join(_placed(each, _content(each, prometheus)) for each in panels)
    title = html.escape(board["title"])
    return f'<h1>{title}</h1><div class="board" style="height:{down_to * ROW}px">{drawn}</div>'


def _placed(panel: Mapping[str, Any], content: str) -> str:
    at = panel["gridPos"]
    kind = "row" if panel["type"] == "row" else "panel"
    place = f"left:{at['x'] * CELL + GAP // 2}px;top:{at['y'] * ROW}px;width:{_width(panel)}px"
    title = html.escape(panel["title"])
    inner = title if kind == "row" else f"<h2>{title}</h2>{content}"
    return f'<div class="{kind}" style="{place};height:{at["h"] * ROW - GAP}px">{inner}</div>'


def _width(panel: Mapping[str, Any]) -> int:
    return int(panel["gridPos"]["w"] * CELL - GAP)


def _content(panel: Mapping[str, Any], prometheus: DemoPrometheus) -> str:
    unit = panel.get("fieldConfig", {}).get("defaults", {}).get("unit", "")
    match panel["type"]:
        case "stat":
            found = _now(panel["targets"][0]["expr"], prometheus)
            return (
                f'<div class="stat">{_shown(float(found[0]["value"][1]), unit) if found else "no data"}</div>'
            )
        case "timeseries":
            return _lines(panel, unit, prometheus)
        case "bargauge":
            target = panel["targets"][0]
            return _bars(
                [
                    (_legend(target, each["metric"]), float(each["value"][1]))
                    for each in _now(target["expr"], prometheus)
                ],
                unit,
            )
        case "table":
            return _table(panel, unit, prometheus)
    return ""


def _lines(panel: Mapping[str, Any], unit: str, prometheus: DemoPrometheus) -> str:
    series = [
        (_legend(target, each["metric"]), [(at, float(value)) for at, value in each["values"]])
        for target in panel["targets"]
        for each in _range(target["expr"], prometheus)
    ]
    width, height = _width(panel) - 70, panel["gridPos"]["h"] * ROW - 96
    top = max((value for _, points in series for _, value in points), default=0) or 1
    begin, length = prometheus.start_ms / 1000, (prometheus.at_ms - prometheus.start_ms) / 1000
    paths, names = [], []
    for n, (name, points) in enumerate(series):
        colour = PALETTE[n % len(PALETTE)]
        drawn = " ".join(
            f"{56 + (at - begin) / length * width:.1f},{8 + height * (1 - value / top):.1f}"
            for at, value in points
        )
        paths.append(f'<polyline points="{drawn}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        names.append(f'<span style="color:{colour}">━</span> {html.escape(name)}')
    scale = "".join(
        f'<text x="50" y="{12 + height * (1 - part)}" text-anchor="end" font-size="10" fill="#8e8e9c">'
        f"{html.escape(_shown(top * part, unit))}</text>"
        f'<path d="M56 {8 + height * (1 - part)}h{width}" stroke="#2c3235"/>'
        for part in (0, 0.5, 1)
    )
    legend = f'<div class="legend">{" &nbsp; ".join(names)}</div>'
    return f'<svg width="{width + 60}" height="{height + 14}">{scale}{"".join(paths)}</svg>{legend}'


def _bars(rows: Sequence[tuple[str, float]], unit: str) -> str:
    top = max((value for _, value in rows), default=0) or 1
    drawn = "".join(
        f'<tr><td>{html.escape(name)}</td><td width="55%"><div class="bar" '
        f'style="width:{value / top:.0%};background:{PALETTE[0]}"></div></td>'
        f"<td>{_shown(value, unit)}</td></tr>"
        for name, value in rows[:MOST_ROWS]
    )
    return f'<table class="bars">{drawn}</table>'


def _table(panel: Mapping[str, Any], unit: str, prometheus: DemoPrometheus) -> str:
    """The answers of all queries side by side, by their labels, under the names that the panel gives them."""
    rows: dict[str, dict[str, str]] = {}
    for target in panel["targets"]:
        for each in _now(target["expr"], prometheus):
            row = rows.setdefault(json.dumps(each["metric"], sort_keys=True), dict(each["metric"]))
            row[f"Value #{target['refId']}"] = _shown(float(each["value"][1]), unit)
    options = next(each["options"] for each in panel["transformations"] if each["id"] == "organize")
    names, order = options["renameByName"], options["indexByName"]
    columns = sorted(names, key=lambda name: order.get(name, 99))
    head = "".join(f"<th>{html.escape(names[name])}</th>" for name in columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(row.get(name, ''))}</td>" for name in columns) + "</tr>"
        for row in list(rows.values())[:MOST_ROWS]
    )
    return f"<table><tr>{head}</tr>{body}</table>"


def _legend(target: Mapping[str, Any], labels: Mapping[str, str]) -> str:
    return re.sub(r"\{\{(\w+)\}\}", lambda found: labels.get(found[1], ""), target.get("legendFormat") or "")


def _shown(value: float, unit: str) -> str:
    if unit == "percentunit":
        return f"{value:.0%}"
    if unit.startswith("currency"):
        return f"${value:,.0f}"
    if unit == "s":
        return f"{value / 3600:.1f} h" if value >= 3600 else f"{value / 60:.0f} min"
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"


def _now(query: str, prometheus: DemoPrometheus) -> list[Any]:
    return _asked(prometheus, "query", query, time=prometheus.at_ms / 1000)


def _range(query: str, prometheus: DemoPrometheus) -> list[Any]:
    begin, end = prometheus.start_ms / 1000, prometheus.at_ms / 1000
    return _asked(prometheus, "query_range", query, start=begin, end=end, step=STEP_S)


def _asked(prometheus: DemoPrometheus, route: str, query: str, **when: float) -> list[Any]:
    for name, value in VARIABLES.items():
        query = query.replace(name, value)
    words = urllib.parse.urlencode({"query": query, **when})
    with urllib.request.urlopen(f"{prometheus.url}/api/v1/{route}?{words}", timeout=60) as answer:
        found: list[Any] = json.load(answer)["data"]["result"]
    return found


if __name__ == "__main__":
    main(Path(sys.argv[1]))
