"""The Dockerfiles as text, since no container is built here: what they are from, copy, and run as."""

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
FILES = (
    "gpucost/Dockerfile",
    "exporters/gpucost_gpu_exporter/Dockerfile",
    "exporters/gpucost_queue_collector/Dockerfile",
)
# Host of a registry, as `registry.example.com/` or `localhost:5000/`: the one who builds chooses it.
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


def steps(file: str) -> list[Step]:
    text = (ROOT / file).read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    found = [line.partition(" ") for line in joined.splitlines() if line.strip()]
    return [Step(name.upper(), rest.strip()) for name, _, rest in found]


def stages(file: str) -> list[list[Step]]:
    found: list[list[Step]] = []
    for step in steps(file):
        if step.name == "FROM":
            found.append([])
        found[-1].append(step)
    return found


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


def copied(file: str) -> Iterator[str]:
    """Sources of COPY that are in the repository."""
    for step in steps(file):
        if step.name == "COPY" and not step.text.startswith("--from="):
            yield from step.words[:-1]


def test_every_dockerfile_is_looked_at() -> None:
    found = {str(path.relative_to(ROOT)) for path in ROOT.glob("[!.]*/**/Dockerfile*")}
    assert found == set(FILES)


@pytest.mark.parametrize("file", FILES)
def test_bases_are_one_version_and_one_digest(file: str) -> None:
    bases = {stage[0].words[0] for stage in stages(file)}
    assert len(bases) == 1
    (base,) = bases
    assert re.fullmatch(r"python:3\.\d+\.\d+-slim-[a-z]+@sha256:[0-9a-f]{64}", base)
    assert not _HOST.match(base)
    everywhere = {stage[0].words[0] for other in FILES for stage in stages(other)}
    assert everywhere == bases, "renew all of them together"
    version = re.match(r"python:(3\.\d+)", base)
    assert version is not None
    floor = PROJECT["requires-python"].removeprefix(">=")
    assert tuple(map(int, version[1].split("."))) >= tuple(map(int, floor.split(".")))


@pytest.mark.parametrize("file", FILES)
def test_it_runs_as_nobody(file: str) -> None:
    final = stages(file)[-1]
    users = [step for step in final if step.name == "USER"]
    assert [user.text for user in users] == ["65532:65532"]
    after = [step.name for step in final[final.index(users[0]) + 1 :]]
    assert after == ["ENTRYPOINT"], "nothing is done or copied as somebody else afterwards"


@pytest.mark.parametrize("file", FILES)
def test_its_entry_point_is_a_script_of_the_package(file: str) -> None:
    entry = stages(file)[-1][-1]
    assert entry.is_exec
    (program,) = entry.words
    folder, _, name = program.rpartition("/")
    assert folder == "/opt/gpucost/bin"
    assert name in PROJECT["scripts"]
    module = PROJECT["scripts"][name].partition(":")[0].split(".")[0]
    assert module == Path(file).parent.name, "the Dockerfile stands beside what it builds"


@pytest.mark.parametrize("file", FILES)
def test_only_known_instructions_and_no_shell(file: str) -> None:
    names = {step.name for step in steps(file)}
    assert names <= {"FROM", "ENV", "WORKDIR", "RUN", "COPY", "LABEL", "USER", "ENTRYPOINT"}, "no ADD, no ARG"
    for step in steps(file):
        if step.name == "RUN":
            assert step.is_exec, "a shell may fetch, pipe and leave things behind"
            assert step.words[:2] == ["python", "-m"]
    final = stages(file)[-1]
    assert "RUN" not in {step.name for step in final}
    sources = [step.text for step in final if step.name == "COPY"]
    assert sources == ["--from=build /opt/gpucost /opt/gpucost"], "nothing but the environment"


@pytest.mark.parametrize("file", FILES)
def test_packages_are_wheels_of_exact_hashes(file: str) -> None:
    installs = [step.words for step in steps(file) if step.name == "RUN" and "install" in step.words]
    *hashed, own = installs
    given = ("requirements-build.txt", "requirements.txt")
    for words, requirements in zip(hashed, given, strict=True):
        assert words[-4:] == ["--only-binary=:all:", "--require-hashes", "--requirement", requirements]
    assert "--no-index" in own, "nothing else is fetched: what is missing is an error"
    (built,) = (step.words for step in steps(file) if step.name == "RUN" and "wheel" in step.words)
    assert "--no-build-isolation" in built, "else the newest builder of the day is fetched"
    assert own[own.index("--python") + 1] == "/opt/gpucost/bin/python"
    wheel = f"/dist/gpucost-{PROJECT['version']}-py3-none-any.whl"
    (what,) = re.findall(rf"^{re.escape(wheel)}\[([a-z,]+)\]$", own[-1])
    assert set(what.split(",")) <= set(PROJECT["optional-dependencies"]) - {"dev"}


@pytest.mark.parametrize("file", FILES)
def test_what_is_copied_is_there_and_sent(file: str) -> None:
    assert f"{Path(file).parent}/requirements.txt" in copied(file)
    for source in copied(file):
        assert (ROOT / source).exists(), source
        assert not ignored(source), source
    assert ignored("gpucost/__pycache__")
    assert ignored("gpucost/api/app.pyc")
    assert ignored("tests/conftest.py")
    assert ignored(".git/config")
    assert ignored("gpucost.db")


@pytest.mark.parametrize("file", FILES)
def test_no_secret_and_no_bytecode_is_written(file: str) -> None:
    text = " ".join(step.text for step in steps(file) if step.name in {"ENV", "LABEL"})
    assert not re.search(r"(?i)password|secret|token|_key\b", text)
    assert "PYTHONDONTWRITEBYTECODE=1" in text
    labels = " ".join(step.text for step in stages(file)[-1] if step.name == "LABEL")
    for name in ("title", "description", "licenses"):
        assert f"org.opencontainers.image.{name}=" in labels


def test_all_of_the_wheel_is_copied() -> None:
    """What pyproject.toml packs is what the Dockerfiles copy."""
    hatch = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["build"]
    wheel = hatch["targets"]["wheel"]
    needed = {name.split("/")[0] for name in wheel["packages"]} | set(wheel["force-include"])
    needed |= {PROJECT["readme"], *PROJECT["license-files"], "pyproject.toml", "requirements-build.txt"}
    assert wheel["exclude"] == ["Dockerfile", "requirements.txt"]
    for file in FILES:
        assert set(copied(file)) == needed | {f"{Path(file).parent}/requirements.txt"}
