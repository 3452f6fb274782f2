"""The teams of the simulated company, and what their pods can be recognised by."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gpucost.domain.holders import NO_TEAM


@dataclass(frozen=True, slots=True)
class Team:
    """One team. Its pods carry its label unless somebody forgot; ``cluster_queue`` is where its quota is."""

    name: str
    namespaces: tuple[str, ...]
    queue: str
    cluster_queue: str
    projects: tuple[str, ...]
    users: tuple[str, ...]


TEAMS: tuple[Team, ...] = (
    Team(
        "language",
        ("language-train", "language-eval"),
        "language",
        "research",
        ("atlas", "babel"),
        ("ada", "bruno", "chen", "dilara"),
    ),
    Team("vision", ("vision",), "vision", "research", ("iris", "retina"), ("elif", "farid", "greta")),
    Team("speech", ("speech",), "speech", "research", ("echo",), ("hiro", "ines")),
    Team(
        "ranking", ("ranking-prod", "ranking-dev"), "ranking", "product", ("feed", "ads"), ("jonas", "kavya")
    ),
    Team("robotics", ("robotics",), "robotics", "product", ("gripper",), ("lena", "mateo", "noor")),
    Team("platform", ("platform",), "platform", "platform", ("ci", "eval-nightly"), ("olga", "pavel")),
)

TEAM_BY_NAME = {team.name: team for team in TEAMS}

# What platform keeps for releases: a queue of its own, hardly used.
RELEASE = replace(TEAM_BY_NAME["platform"], queue="release", cluster_queue="release")

# A namespace that no team rule knows: what runs here shows up in reports as nobody's.
SANDBOX = Team(NO_TEAM, ("sandbox",), "", "", ("",), ("guest",))
