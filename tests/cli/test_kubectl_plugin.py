"""``kubectl gpucost``: the script that is installed, the one that krew installs, and krew's manifest."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
KREW = ROOT / "docs" / "krew"


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A folder with ``kubectl-gpucost`` as an installer of packages writes it."""
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]
    module, _, function = scripts["kubectl-gpucost"].partition(":")
    assert callable(getattr(importlib.import_module(module), function))
    folder = tmp_path / "bin"
    folder.mkdir()
    _executable(
        folder / "kubectl-gpucost",
        f"#!{sys.executable}\nimport sys\nfrom {module} import {function}\nsys.exit({function}())\n",
    )
    return folder


def _executable(file: Path, text: str) -> None:
    file.write_text(text, encoding="utf-8")
    file.chmod(0o755)


def _run(*words: str, path: Path, code: int = 0) -> str:
    env = {**os.environ, "PATH": f"{path}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    result = subprocess.run(words, capture_output=True, text=True, env=env, timeout=60, check=False)
    assert result.returncode == code, result.stderr
    return result.stdout + result.stderr


def test_the_script_is_the_same_command_under_the_name_of_the_plugin(installed: Path) -> None:
    text = _run("kubectl-gpucost", "--help", path=installed)
    assert text.startswith("Usage: kubectl gpucost [OPTIONS] COMMAND")
    assert " advise " in text
    assert " explain " in text


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_kubectl_finds_it(installed: Path) -> None:
    text = _run("kubectl", "gpucost", "explain", "--help", path=installed)
    assert text.startswith("Usage: kubectl gpucost explain [OPTIONS] {KIND/NAME}")


def test_what_krew_installs_runs_the_package(tmp_path: Path) -> None:
    _executable(tmp_path / "gpucost", '#!/bin/sh\nprintf "%s\\n" "$@"\n')
    said = _run(str(KREW / "kubectl-gpucost"), "advise", "-f", "a b.yaml", path=tmp_path)
    assert said == "advise\n-f\na b.yaml\n"


def test_what_krew_installs_says_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "sh").symlink_to(shutil.which("sh") or "/bin/sh")
    result = subprocess.run(
        [str(KREW / "kubectl-gpucost")],
        capture_output=True,
        text=True,
        env={"PATH": str(tmp_path)},
        check=False,
    )
    assert result.returncode == 127
    assert 'pipx install "gpucost[server]"' in result.stderr


def test_the_manifest_is_one_of_krew_once_a_release_is_filled_in() -> None:
    text = (KREW / "gpucost.yaml").read_text(encoding="utf-8")
    filled, count = re.subn(
        r'\{\{addURIAndSha "(.*?)" \.TagName \}\}', rf"uri: \1\n    sha256: {'0' * 64}", text
    )
    assert count == 1
    found = yaml.safe_load(filled.replace("{{ .TagName }}", "v0.1.0"))
    assert (found["kind"], found["metadata"]["name"]) == ("Plugin", "gpucost")
    assert found["apiVersion"] == "krew.googlecontainertools.github.com/v1alpha2"
    spec = found["spec"]
    assert re.fullmatch(r"v\d+\.\d+\.\d+", spec["version"])
    assert 0 < len(spec["shortDescription"]) <= 50, "krew's naming guide"
    (platform,) = spec["platforms"]
    assert platform["uri"].endswith("/v0.1.0/kubectl-gpucost.tar.gz")
    assert {each["from"] for each in platform["files"]} == {"kubectl-gpucost", "LICENSE"}
    assert platform["bin"] == "kubectl-gpucost"
    assert all((ROOT / name).is_file() for name in ("docs/krew/kubectl-gpucost", "LICENSE"))
