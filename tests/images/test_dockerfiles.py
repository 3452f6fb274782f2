"""The Dockerfile as text, since no container is built here: what its images are from, copy, and run as."""

from __future__ import annotations

import fnmatch
import json
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
FILE = ROOT / "gpucost" / "Dockerfile"
PACKAGES = {
    "service": "gpucost",
    "gpu-exporter": "exporters/gpucost_gpu_exporter",
    "queue-collector": "exporters/gpucost_queue_collector",
}
"""Targets, and the folders of what their images run."""
TARGETS = tuple(PACKAGES)
# Host of a registry, as `registry.example.com/` or `localhost:5000/`: whoever builds says where from.
_HOST = re.compile(r"^[^/]*[.:][^/]*/")


@dataclass(frozen=True)
class Step:
    """One instruction with its lines joined; ``words`` are those of its exec form, or else of its text."""

    name: str
    text: str

    @property
    def is_exec(self) -> bool:
        return self.text.startswith("[")

    @property
    def words(self) -> list[str]:
        return list(json.loads(self.text)) if self.is_exec else self.text.split()


def steps() -> list[Step]:
    text = FILE.read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    found = [line.partition(" ") for line in joined.splitlines() if line.strip()]
    return [Step(name.upper(), rest.strip()) for name, _, rest in found]


def stages() -> dict[str, list[Step]]:
    """By name; the first step of each is FROM."""
    found: dict[str, list[Step]] = {}
    for step in steps():
        if step.name == "FROM":
            _, word, name = step.words
            assert word == "AS"
            assert name not in found
            found[name] = []
        list(found.values())[-1].append(step)
    return found


def built_from(target: str) -> list[str]:
    """The stages that go into one, itself last: what it begins with, and what it copies from."""
    found: list[str] = []
    for step in stages()[target]:
        sources = [step.words[0]] if step.name == "FROM" else re.findall(r"^--from=(\S+)", step.text)
        for source in sources:
            if source in stages():
                found += [name for name in built_from(source) if name not in found]
    return [*found, target]


def lineage(target: str) -> list[Step]:
    """All that is done in the image itself: in the stage and in those that it begins with."""
    own = stages()[target]
    before = own[0].words[0]
    return [*(lineage(before) if before in stages() else []), *own]


def steps_for(target: str) -> list[Step]:
    return [step for name in built_from(target) for step in stages()[name]]


def ignored(path: str) -> bool:
    """By .dockerignore, whose last pattern that matches counts. A folder's pattern is one for all in it."""
    is_out = False
    for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines():
        pattern = line.strip()
        if pattern and not pattern.startswith("#"):
            name = pattern.lstrip("!").removeprefix("**/")
            whole = "**/" not in pattern
            parts = [path] if whole else path.split("/")
            if any(fnmatch.fnmatch(part, name) for part in parts) or (whole and path.startswith(f"{name}/")):
                is_out = not pattern.startswith("!")
    return is_out


def copied(target: str) -> Iterator[str]:
    """Sources of COPY that are in the repository."""
    for step in steps_for(target):
        if step.name == "COPY" and not step.text.startswith("--from="):
            yield from step.words[:-1]


def test_every_dockerfile_is_looked_at() -> None:
    assert [*ROOT.glob("[!.]*/**/Dockerfile*")] == [FILE]
    used = {name for target in TARGETS for name in built_from(target)}
    assert used == set(stages()), "every stage goes into an image"
    assert [*stages()][-1] == "service", "what is built where no target is named"


@pytest.mark.parametrize("target", TARGETS)
def test_bases_are_one_version_and_one_digest(target: str) -> None:
    bases = {stages()[name][0].words[0] for name in built_from(target)} - set(stages())
    assert len(bases) == 1
    (base,) = bases
    assert re.fullmatch(r"python:3\.\d+\.\d+-slim-[a-z]+@sha256:[0-9a-f]{64}", base)
    assert not _HOST.match(base)
    assert lineage(target)[0].words[0] == base
    everywhere = [stage[0].words[0] for stage in stages().values() if stage[0].words[0] not in stages()]
    assert everywhere == [base], "named in one place"
    version = re.match(r"python:(3\.\d+)", base)
    assert version is not None
    floor = PROJECT["requires-python"].removeprefix(">=")
    assert tuple(map(int, version[1].split("."))) >= tuple(map(int, floor.split(".")))


@pytest.mark.parametrize("target", TARGETS)
def test_it_runs_as_nobody(target: str) -> None:
    final = lineage(target)
    users = [step for step in final if step.name == "USER"]
    assert [user.text for user in users] == ["65532:65532"]
    after = [step.name for step in final[final.index(users[0]) + 1 :]]
    assert after == ["ENTRYPOINT"], "nothing is done or copied as somebody else afterwards"


@pytest.mark.parametrize("target", TARGETS)
def test_its_entry_point_is_a_script_of_the_package(target: str) -> None:
    entry = stages()[target][-1]
    assert entry.is_exec
    (program,) = entry.words
    folder, _, name = program.rpartition("/")
    assert folder == "/opt/gpucost/bin"
    assert name in PROJECT["scripts"]
    module = PROJECT["scripts"][name].partition(":")[0].split(".")[0]
    assert module == Path(PACKAGES[target]).name


@pytest.mark.parametrize("target", TARGETS)
def test_only_known_instructions_and_no_shell(target: str) -> None:
    names = {step.name for step in steps_for(target)}
    assert names <= {"FROM", "ENV", "WORKDIR", "RUN", "COPY", "LABEL", "USER", "ENTRYPOINT"}, "no ADD, no ARG"
    for step in steps_for(target):
        if step.name == "RUN":
            assert step.is_exec, "a shell may fetch, pipe and leave things behind"
            assert step.words[:2] == ["python", "-m"]
    final = lineage(target)
    assert "RUN" not in {step.name for step in final}
    sources = [step.text for step in final if step.name == "COPY"]
    assert sources == [f"--from={target}-environment /opt/gpucost /opt/gpucost"], (
        "nothing but the environment"
    )


@pytest.mark.parametrize("target", TARGETS)
def test_packages_are_wheels_of_exact_hashes(target: str) -> None:
    (builder,) = (step.words for step in stages()["wheel"] if "install" in step.words)
    hashed, own = (step.words for step in stages()[f"{target}-environment"] if "install" in step.words)
    given = ("requirements-build.txt", "requirements.txt")
    for words, requirements in zip((builder, hashed), given, strict=True):
        assert words[-4:] == ["--only-binary=:all:", "--require-hashes", "--requirement", requirements]
    installs = [step for step in steps_for(target) if step.name == "RUN" and "install" in step.words]
    assert len(installs) == 3
    assert "--no-index" in own, "nothing else is fetched: what is missing is an error"
    (built,) = (step.words for step in steps_for(target) if step.name == "RUN" and "wheel" in step.words)
    assert "--no-build-isolation" in built, "else the newest builder of the day is fetched"
    assert own[own.index("--python") + 1] == hashed[hashed.index("--python") + 1] == "/opt/gpucost/bin/python"
    wheel = f"/dist/gpucost-{PROJECT['version']}-py3-none-any.whl"
    (what,) = re.findall(rf"^{re.escape(wheel)}\[([a-z,]+)\]$", own[-1])
    assert set(what.split(",")) <= set(PROJECT["optional-dependencies"]) - {"dev"}


@pytest.mark.parametrize("target", TARGETS)
def test_what_is_copied_is_there_and_sent(target: str) -> None:
    assert f"{PACKAGES[target]}/requirements.txt" in copied(target)
    for source in copied(target):
        assert (ROOT / source).exists(), source
        assert not ignored(source), source
    assert ignored("gpucost/__pycache__")
    assert ignored("gpucost/api/app.pyc")
    assert ignored("tests/conftest.py")
    assert ignored(".git/config")
    assert ignored("gpucost.db")


@pytest.mark.parametrize("target", TARGETS)
def test_no_secret_and_no_bytecode_is_written(target: str) -> None:
    text = " ".join(step.text for step in steps_for(target) if step.name in {"ENV", "LABEL"})
    assert not re.search(r"(?i)password|secret|token|_key\b", text)
    assert "PYTHONDONTWRITEBYTECODE=1" in " ".join(
        step.text for step in lineage(target) if step.name == "ENV"
    )
    labels = " ".join(step.text for step in stages()[target] if step.name == "LABEL")
    for name in ("title", "description", "licenses"):
        assert f"org.opencontainers.image.{name}=" in labels


def test_all_of_the_wheel_is_copied() -> None:
    """What pyproject.toml packs is what the Dockerfile copies."""
    hatch = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["build"]
    wheel = hatch["targets"]["wheel"]
    needed = {name.split("/")[0] for name in wheel["packages"]} | set(wheel["force-include"])
    needed |= {PROJECT["readme"], *PROJECT["license-files"], "pyproject.toml", "requirements-build.txt"}
    assert wheel["exclude"] == ["Dockerfile", "requirements.txt"]
    for target, package in PACKAGES.items():
        assert set(copied(target)) == needed | {f"{package}/requirements.txt"}
