"""The functions that the stand-in library exports."""

from __future__ import annotations

SYMBOLS = frozenset(
    {
        "nvmlDeviceGetAttributes_v2",
        "nvmlDeviceGetComputeInstanceId",
        "nvmlDeviceGetComputeRunningProcesses_v3",
        "nvmlDeviceGetCount_v2",
        "nvmlDeviceGetCurrentClocksEventReasons",
        "nvmlDeviceGetCurrentClocksThrottleReasons",
        "nvmlDeviceGetDeviceHandleFromMigDeviceHandle",
        "nvmlDeviceGetFieldValues",
        "nvmlDeviceGetGpuInstanceId",
        "nvmlDeviceGetGraphicsRunningProcesses_v3",
        "nvmlDeviceGetHandleByIndex_v2",
        "nvmlDeviceGetHandleByUUID",
        "nvmlDeviceGetIndex",
        "nvmlDeviceGetMPSComputeRunningProcesses_v3",
        "nvmlDeviceGetMaxMigDeviceCount",
        "nvmlDeviceGetMemoryInfo",
        "nvmlDeviceGetMemoryInfo_v2",
        "nvmlDeviceGetMigDeviceHandleByIndex",
        "nvmlDeviceGetMigMode",
        "nvmlDeviceGetMinorNumber",
        "nvmlDeviceGetName",
        "nvmlDeviceGetPciInfo_v3",
        "nvmlDeviceGetPowerUsage",
        "nvmlDeviceGetProcessUtilization",
        "nvmlDeviceGetSamples",
        "nvmlDeviceGetSupportedEventTypes",
        "nvmlDeviceGetTotalEnergyConsumption",
        "nvmlDeviceGetUUID",
        "nvmlDeviceGetUtilizationRates",
        "nvmlDeviceIsMigDeviceHandle",
        "nvmlDeviceRegisterEvents",
        "nvmlErrorString",
        "nvmlEventSetCreate",
        "nvmlEventSetFree",
        "nvmlEventSetWait_v2",
        "nvmlGpmMetricsGet",
        "nvmlGpmMigSampleGet",
        "nvmlGpmQueryDeviceSupport",
        "nvmlGpmSampleAlloc",
        "nvmlGpmSampleFree",
        "nvmlGpmSampleGet",
        "nvmlInitWithFlags",
        "nvmlInit_v2",
        "nvmlShutdown",
        "nvmlSystemGetDriverVersion",
        "nvmlSystemGetNVMLVersion",
    }
)


def exact_symbol(function: str) -> str:
    """The exported name of a function given with or without its version suffix. Raises ``ValueError``."""
    for name in (function, f"{function}_v2", f"{function}_v3"):
        if name in SYMBOLS:
            return name
    raise ValueError(f"the stand-in library has no {function}")
