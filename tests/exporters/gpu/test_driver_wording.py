"""Each code that the exporter can give as a reason is said in words, and none sends the reader to the log."""

from __future__ import annotations

import pytest

from gpucost_gpu_exporter.dcgm.endpoint import DcgmFailure
from gpucost_gpu_exporter.dcgm.scrapes import DcgmProblem
from gpucost_gpu_exporter.driver.calls import _CODES, CORRUPT, INTERNAL
from gpucost_gpu_exporter.holders import ShareNoteKind
from gpucost_gpu_exporter.kubelet.client import KubeletFailure
from gpucost_gpu_exporter.metering.missing_parts import NODE, MissingPart
from gpucost_gpu_exporter.text_report import sentences

NVML = sorted({*_CODES.values(), CORRUPT, INTERNAL, "ERROR_77"} - {"SUCCESS"})
IN_OWN_WORDS = (
    *("LIB_RM_VERSION_MISMATCH", "NOT_FOUND", "RESET_REQUIRED", "UNKNOWN", "TIMEOUT", "INVALID_ARGUMENT"),
    *("IRQ_ISSUE", "IN_USE", "UNINITIALIZED", "DRIVER_NOT_LOADED", "LIBRARY_NOT_FOUND", "GPU_IS_LOST"),
    *("NO_PERMISSION", "NOT_SUPPORTED", "FUNCTION_NOT_FOUND", CORRUPT, INTERNAL),
)


def said(part: str, reason: str) -> str:
    [sentence] = sentences([MissingPart(NODE, part, reason)])
    return sentence


@pytest.mark.parametrize(
    ("part", "reason"),
    [
        *((part, code) for part in ("driver", "gpu", "busy", "mig") for code in NVML),
        *(("driver", code) for code in ("NO_GPUS", "HUNG", "EXITED", "PROTOCOL", "STUCK")),
        *(("kubelet", str(reason)) for reason in KubeletFailure),
        *(("allocatable", str(reason)) for reason in KubeletFailure),
        *(("holders", str(kind)) for kind in ShareNoteKind),
        ("holders", "unknown_device"),
        *(("dcgm", str(failure)) for failure in DcgmFailure),
        *(("dcgm", str(problem)) for problem in DcgmProblem),
        *(("pods", reason) for reason in ("off", "starting", "unreachable", "forbidden", "uid_unknown")),
        *(("host_pids", reason) for reason in ("off", "not_host_pid_namespace", "proc_unreadable")),
    ],
)
def test_no_code_is_left_to_the_log(part: str, reason: str) -> None:
    assert "see the log" not in said(part, reason)
    assert said(part, reason).endswith(f" ({part} {reason})")


@pytest.mark.parametrize("code", IN_OWN_WORDS)
def test_the_codes_that_a_node_meets_have_words_of_their_own(code: str) -> None:
    assert f"NVML error {code}" not in said("gpu", code)


def test_any_other_code_of_the_driver_is_named() -> None:
    assert said("energy", "ERROR_77") == "missing: energy: NVML error ERROR_77 (energy ERROR_77)"


def test_what_to_do_is_said_where_there_is_something() -> None:
    assert "check the role" in said("pods", "forbidden")
    assert "is GPUCOST_GPU_EXPORTER_NODE the node's name?" in said("pods", "uid_unknown")
    assert "reboot" in said("driver", "LIB_RM_VERSION_MISMATCH")
