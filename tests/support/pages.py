"""What a page of documentation says: its sections and its blocks of code."""

from __future__ import annotations

import re
from pathlib import Path
from textwrap import dedent
from typing import Any

import yaml


def section(page: Path, heading: str) -> str:
    """A section of the second level, from its heading to the next."""
    text = page.read_text("utf-8")
    [found] = re.findall(rf"^## {re.escape(heading)}\n.*?(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    return str(found)


def blocks(text: str, language: str = "") -> list[str]:
    """The blocks of code in a language, those of list items too; whatever else the fence says."""
    fenced = re.findall(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```$", text, re.MULTILINE | re.DOTALL)
    return [dedent(body) for _, kind, body in fenced if kind == language]


def values_in(text: str) -> list[dict[str, Any]]:
    """The blocks that are values of the chart."""
    found = map(yaml.safe_load, blocks(text, "yaml"))
    return [each for each in found if isinstance(each, dict) and "prometheus" in each]
