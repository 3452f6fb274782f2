"""Containers of a rendered pod as processes of this machine: with their user, files and variables only.

Each has a mount namespace of its own, with a root that cannot be written and the pod's volumes in it, as a
container runtime makes them. The network is the machine's. Programs are this environment's, since there are
no images here.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
TOKEN = "/var/run/secrets/kubernetes.io/serviceaccount"
_IMAGE = "/opt/gpucost/bin"
_FROM_THE_MACHINE = ("usr", "bin", "sbin", "lib", "lib64", "proc", "dev")
_TOOLS = ("unshare", "mount", "chroot", "setpriv", "env")


def _can_mount() -> bool:
    if os.geteuid() != 0 or not all(map(shutil.which, _TOOLS)):
        return False
    script = "mount -t tmpfs none /mnt"
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


needs_mounts = pytest.mark.skipif(
    not _can_mount(), reason="rendered pods are NOT RUN: this takes root, unshare and mounts"
)


def image_variables() -> dict[str, str]:
    """What all three images set."""
    text = (ROOT / "gpucost" / "Dockerfile").read_text("utf-8")
    [last] = re.findall(r"^ENV (PATH=(?:.*\\\n)*.*)$", text, re.MULTILINE)
    return dict(re.findall(r"(\w+)=(\S+)", last))


class Pod:
    """``volumes`` are files by volume and name; a volume that is not there is empty. ``token`` are the files
    of the service account, ``programs`` the text of scripts in place of the environment's, by name,
    ``fields`` what the downward API says, ``given`` the variables that Kubernetes sets in every pod."""

    def __init__(
        self,
        folder: Path,
        template: Mapping[str, Any],
        *,
        volumes: Mapping[str, Mapping[str, str]],
        token: Mapping[str, str],
        programs: Mapping[str, str],
        fields: Mapping[str, str],
        given: Mapping[str, str],
    ) -> None:
        self.spec = template["spec"]
        self._fields, self._given = fields, given
        self._root, self._volumes = folder / "root", folder / "volumes"
        ids = self.spec["securityContext"]
        self._user, self._group = ids["runAsUser"], ids["fsGroup"]
        for each in self.spec["volumes"]:
            kind = "tmp" if each["name"] == "tmp" else next(key for key in each if key != "name")
            self._make(each["name"], volumes.get(each["name"], {}), 0o777 if kind == "tmp" else 0o2775)
        if self.spec["automountServiceAccountToken"]:
            self._make("token", token, 0o755)
        self._make_root(programs)

    def _make(self, name: str, files: Mapping[str, str], mode: int) -> None:
        """A volume as the kubelet hands it out: of the group of the pod."""
        folder = self._volumes / name
        folder.mkdir(parents=True)
        for file, content in files.items():
            (folder / file).write_text(content, encoding="utf-8")
        os.chown(folder, 0, self._group)
        folder.chmod(mode)

    def _make_root(self, programs: Mapping[str, str]) -> None:
        for name in ("gpucost", "gpucost-gpu-exporter", "gpucost-queue-collector"):
            file = self._below(_IMAGE) / name
            file.parent.mkdir(parents=True, exist_ok=True)
            if name in programs:
                file.write_text(programs[name], encoding="utf-8")
                file.chmod(0o755)
            else:
                file.symlink_to(Path(sys.executable).with_name(name))
        (self._below("/var")).mkdir()
        (self._below("/var/run")).symlink_to("/run")
        (self._below("/etc")).mkdir()
        for name in ("ld.so.cache", "ssl", "nsswitch.conf", "hosts"):
            if (source := Path("/etc") / name).exists():
                copy = shutil.copytree if source.is_dir() else shutil.copy
                copy(source, self._below(str(source)))
        for name in _FROM_THE_MACHINE:
            if (source := Path("/") / name).is_symlink():
                self._below(str(source)).symlink_to(source.readlink())
        for _, target in self._mounts():
            self._below(target).mkdir(parents=True, exist_ok=True)

    def _below(self, path: str) -> Path:
        return self._root / path.replace("/var/run/", "/run/").removeprefix("/")

    def _mounts(self) -> Iterator[tuple[Path, str]]:
        """(what, where) of everything that any container of the pod sees."""
        for name in _FROM_THE_MACHINE:
            if (source := Path("/") / name).is_dir() and not source.is_symlink():
                yield source, str(source)
        for path in dict.fromkeys((ROOT, Path(sys.prefix), Path(sys.base_prefix))):
            if path.parts[1] not in _FROM_THE_MACHINE:
                yield path, str(path)
        for container in self._containers():
            yield from self._mounts_of(container)

    def _mounts_of(self, container: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
        for each in container["volumeMounts"]:
            yield self._volumes / each["name"], each["mountPath"]
        if self.spec["automountServiceAccountToken"]:
            yield self._volumes / "token", TOKEN

    def _containers(self) -> list[dict[str, Any]]:
        return [*self.spec.get("initContainers", ()), *self.spec["containers"]]

    def variables(self, container: Mapping[str, Any]) -> dict[str, str]:
        """All that a process of the container has."""
        own = {
            each["name"]: each["value"]
            if "value" in each
            else self._fields[each["valueFrom"]["fieldRef"]["fieldPath"]]
            for each in container["env"]
        }
        return {"HOME": "/", **image_variables(), **self._given, **own}

    def command(self, name: str = "", words: Sequence[str] = ()) -> list[str]:
        """What runs ``words`` in a container as ``kubectl exec`` does; without, what the container runs. The
        first container unless it is named."""
        default = self.spec["containers"][0]
        container = next((each for each in self._containers() if each["name"] == name), default)
        assert not name or container["name"] == name, name
        assert container["securityContext"]["readOnlyRootFilesystem"]
        own = {target for _, target in self._mounts_of(container)}
        others = {target for each in self._containers() for _, target in self._mounts_of(each)} - own
        lines = ["set -e", f"mount --bind {self._root} {self._root}"]
        # Those that are nearer to the root first: this checkout may itself stand below a pod's /tmp.
        for source, target in sorted(dict.fromkeys(self._mounts()), key=lambda each: each[1].count("/")):
            if target not in others:
                below = str(self._below(target))
                lines.append(shlex.join(["mkdir", "-p", below]))
                lines.append(shlex.join(["mount", "--rbind", str(source), below]))
        lines += [
            shlex.join(["mount", "-o", "remount,bind,ro", str(self._below(each["mountPath"]))])
            for each in container["volumeMounts"]
            if each.get("readOnly")
        ]
        lines.append(f"mount -o remount,bind,ro {self._root}")
        user = [f"--reuid={self._user}", f"--regid={self._group}", "--clear-groups"]
        given = [f"{key}={value}" for key, value in self.variables(container).items()]
        run = ["chroot", self._root, "setpriv", *user, "--no-new-privs", "--bounding-set=-all", "--"]
        run += ["env", "-i", "-C", "/tmp", *given, *(words or container["command"])]
        lines.append(f"exec {shlex.join(map(str, run))}")
        script = "\n".join(lines)
        return ["unshare", "--mount", "--propagation", "private", "sh", "-c", script]

    def run(self, name: str = "", *words: str) -> subprocess.CompletedProcess[str]:
        """To its end; see ``command``."""
        return subprocess.run(
            self.command(name, words), capture_output=True, text=True, check=False, timeout=120
        )
