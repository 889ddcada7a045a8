"""Run on the host beside the server: what NVML says of the GPUs that the server uses, on the host's clock.

usage: python gpu_sampler.py FILE '{"hz": 10, "visible": "0,1" or null, "used": [0] or null, "pids": [], "path": ""}'
`visible` is the server's CUDA_VISIBLE_DEVICES, `used` the positions in it that ranks work on, `pids` the ranks'
processes, `path` the server's PYTHONPATH. Prints {"event": "sampling"} or {"event": "refused", "why"}, samples until a
line or the end of standard input, then prints {"event": "stopped"}. FILE holds JSON lines: {"gpus": [...]} first, then
rows [gpu, epoch s, *COLUMNS], {"gpu", "t", "counters": {reason: ms since the driver was loaded}}, and at the end
{"cost": ..., "gpus": [...]}.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from typing import Any

#: What a row holds behind the GPU's position and the time: MHz, W, degrees Celsius, percent; reasons is a bitmask.
COLUMNS = ("sm_mhz", "memory_mhz", "power_w", "temperature_c", "utilisation_percent", "pstate", "reasons")
#: Each call takes a tenth to half of a millisecond, so what only the edges of a window need is asked less often.
COUNTERS_EVERY_S = 0.5
PROCESSES_EVERY_S = 5.0

#: nvml.h's return codes that say "not here": not supported, invalid argument (a link that does not exist), no
#: permission, function not found, argument version mismatch, deprecated.
ABSENT = (3, 2, 4, 13, 25, 26)
#: Names in the library, newest first, and the field's number in nvml.h for a library without any of them.
FIELDS = {
    "sw_power_cap": (("NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP", "NVML_FI_DEV_PERF_POLICY_POWER"), 74),
    "sync_boost": (("NVML_FI_DEV_CLOCKS_EVENT_REASON_SYNC_BOOST", "NVML_FI_DEV_PERF_POLICY_SYNC_BOOST"), 76),
    "sw_thermal_slowdown": (("NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN",), 269),
    "hw_thermal_slowdown": (("NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN",), 270),
    "hw_power_brake": (("NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN",), 271),
}
#: nvmlPerfPolicyType_t. The same limits as seen by nvmlDeviceGetViolationStatus, which older drivers have too.
VIOLATIONS = {"violation_power": 0, "violation_thermal": 1, "violation_sync_boost": 2, "violation_board_limit": 3}
#: nvmlValueType_t, in order.
VALUE_TYPES = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
MAX_NVLINKS = 32


class Device:
    """One GPU. `unsupported` names what it, its driver or the library does not offer: `ask` is what decides that."""

    def __init__(self, nvml: Any, index: int) -> None:
        self.nvml = nvml
        self.index = index
        self.handle = nvml.nvmlDeviceGetHandleByIndex(index)
        self.unsupported: list[str] = []
        self.errors: dict[str, str] = {}
        self.processes: dict[int, float | None] = {}
        self.foreign_pids = False

    def ask(self, what: str, names: str | tuple[str, ...], *arguments: Any) -> Any:
        """What the first of these functions that is there answers. None when none is, or when it fails this time."""
        if what in self.unsupported:
            return None
        for name in (names,) if isinstance(names, str) else names:
            function = getattr(self.nvml, name, None)
            if function is None:
                continue
            try:
                return function(self.handle, *arguments)
            except self.nvml.NVMLError as error:
                if getattr(error, "value", None) not in ABSENT:
                    self.errors[what] = str(error)
                    return None
        self.unsupported.append(what)
        return None

    def describe(self) -> dict[str, Any]:
        """What does not change while the server runs, in the names and units of the capture's Gpu."""
        sm, memory = 1, self.ask("memory_mb", "nvmlDeviceGetMemoryInfo")
        ecc, mig = self.ask("ecc", "nvmlDeviceGetEccMode"), self.ask("mig", "nvmlDeviceGetMigMode")
        persistence = self.ask("persistence", "nvmlDeviceGetPersistenceMode")
        limits = ("nvmlDeviceGetEnforcedPowerLimit", "nvmlDeviceGetPowerManagementLimit")
        return {
            "index": self.index,
            "name": _text(self.ask("name", "nvmlDeviceGetName")) or "",
            "uuid": _text(self.ask("uuid", "nvmlDeviceGetUUID")) or "",
            "memory_mb": None if memory is None else round(memory.total / 2**20),
            "sm_mhz_max": self.ask("sm_mhz_max", "nvmlDeviceGetMaxClockInfo", sm),
            "sm_mhz_application": self.ask("sm_mhz_application", "nvmlDeviceGetApplicationsClock", sm),
            "power_limit_w": _scaled(self.ask("power_limit_w", limits), 1000),
            "power_limit_default_w": _scaled(
                self.ask("power_limit_default_w", "nvmlDeviceGetPowerManagementDefaultLimit"), 1000
            ),
            "ecc": None if ecc is None else bool(ecc[0]),
            "mig": None if mig is None else bool(mig[0]),
            "persistence": None if persistence is None else bool(persistence),
            "pcie_generation": self.ask("pcie_generation", "nvmlDeviceGetCurrPcieLinkGeneration"),
            "pcie_width": self.ask("pcie_width", "nvmlDeviceGetCurrPcieLinkWidth"),
            **self._nvlink(),
        }

    def _nvlink(self) -> dict[str, Any]:
        states: list[int] = []
        for link in range(MAX_NVLINKS):
            # The first link that does not exist ends the list, and is only news when it is link 0.
            before = list(self.unsupported)
            state = self.ask(f"nvlink {link}", "nvmlDeviceGetNvLinkState", link)
            if state is None:
                self.unsupported = before if states else [*before, "nvlinks"]
                break
            states.append(state)
        active = [link for link, state in enumerate(states) if state]
        version = self.ask("nvlink_version", "nvmlDeviceGetNvLinkVersion", active[0]) if active else None
        return {"nvlinks": len(active) if states else None, "nvlink_version": version}

    def sample(self) -> list[Any]:
        """One row's COLUMNS."""
        utilisation = self.ask("utilisation_percent", "nvmlDeviceGetUtilizationRates")
        return [
            self.ask("sm_mhz", "nvmlDeviceGetClockInfo", 1),
            self.ask("memory_mhz", "nvmlDeviceGetClockInfo", 2),
            _scaled(self.ask("power_w", "nvmlDeviceGetPowerUsage"), 1000),
            self.ask("temperature_c", "nvmlDeviceGetTemperature", 0),
            None if utilisation is None else utilisation.gpu,
            self.ask("pstate", "nvmlDeviceGetPerformanceState"),
            self.ask(
                "reasons", ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
            ),
        ]

    def counters(self) -> dict[str, float]:
        """Milliseconds that each limit has held the clocks down since the driver was loaded."""
        found: dict[str, float] = {}
        wanted = [name for name in FIELDS if name not in self.unsupported]
        values = self.ask("counters", "nvmlDeviceGetFieldValues", [_field(self.nvml, name) for name in wanted])
        for name, value in zip(wanted, values, strict=True) if values is not None else ():
            if value.nvmlReturn == 0:
                found[name] = getattr(value.value, VALUE_TYPES[value.valueType]) / 1e6
            else:
                self.unsupported.append(name)
        for name, policy in VIOLATIONS.items():
            status = self.ask(name, "nvmlDeviceGetViolationStatus", policy)
            if status is not None:
                found[name] = status.violationTime / 1e6
        return found

    def look_for_company(self, ours: list[int]) -> None:
        """Remember the processes seen. In a container NVML may give pids of the host, which tell nothing apart."""
        seen = self.ask("processes", "nvmlDeviceGetComputeRunningProcesses") or []
        self.foreign_pids |= bool(seen and ours) and not any(process.pid in ours for process in seen)
        for process in seen:
            self.processes[int(process.pid)] = _scaled(process.usedGpuMemory, 2**20)

    def closing(self, ours: list[int]) -> dict[str, Any]:
        """What the whole time showed."""
        unsupported = [*self.unsupported, *(["processes (pids of another namespace)"] if self.foreign_pids else [])]
        processes = {} if self.foreign_pids else self.processes
        return {
            "unsupported": unsupported,
            "errors": self.errors,
            "processes": [
                {"pid": pid, "memory_mb": memory, "ours": pid in ours} for pid, memory in sorted(processes.items())
            ],
        }


def visible_devices(nvml: Any, visible: str | None, used: list[int] | None) -> list[int]:
    """NVML's indices of the GPUs that the server uses; all of them where nothing narrows them down.

    CUDA_VISIBLE_DEVICES holds indices or beginnings of UUIDs, and ends at the first that names nothing.
    """
    count = nvml.nvmlDeviceGetCount()
    uuids = [_text(nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByIndex(index))) for index in range(count)]
    indices = []
    for word in visible.split(",") if visible is not None else map(str, range(count)):
        name = word.strip()
        named = [index for index in range(count) if name and uuids[index].startswith(name)]
        index = int(name) if name.isdigit() else (named or [-1])[0]
        if not 0 <= index < count:
            break
        indices.append(index)
    if used is None:
        return indices
    return [indices[position] for position in sorted(set(used)) if position < len(indices)]


def sample_until(
    stopped: threading.Event, devices: list[Device], out: Any, hz: float, ours: list[int]
) -> dict[str, Any]:
    """Write rows until told to stop; returns what it cost: ms per sample of all GPUs, share of one core."""
    begin, cpu = time.perf_counter(), time.process_time()
    spent: list[float] = []
    counters_at = processes_at = next_at = begin
    while True:
        now = time.perf_counter()
        for position, device in enumerate(devices):
            out.write(json.dumps([position, round(time.time(), 4), *device.sample()], separators=(",", ":")) + "\n")
        spent.append(time.perf_counter() - now)
        last = stopped.is_set()
        if now >= counters_at or last:
            counters_at += COUNTERS_EVERY_S
            for position, device in enumerate(devices):
                line = {"gpu": position, "t": round(time.time(), 4), "counters": device.counters()}
                out.write(json.dumps(line) + "\n")
        if now >= processes_at or last:
            processes_at += PROCESSES_EVERY_S
            for device in devices:
                device.look_for_company(ours)
            out.flush()
        if last:
            break
        # A sample that took longer than its turn is not made up for: it would only add load.
        next_at = max(next_at + 1 / hz, time.perf_counter())
        stopped.wait(next_at - time.perf_counter())
    wall = time.perf_counter() - begin
    return {
        "hz": hz,
        "samples": len(spent),
        "first_ms": round(spent[0] * 1000, 3),
        "ms_per_sample": round(sum(spent[1:] or spent) / len(spent[1:] or spent) * 1000, 3),
        "share_of_a_core": round((time.process_time() - cpu) / wall, 4) if wall > 0 else None,
    }


def _field(nvml: Any, name: str) -> int:
    names, number = FIELDS[name]
    return int(next((getattr(nvml, one) for one in names if hasattr(nvml, one)), number))


def _scaled(value: float | None, unit: float) -> float | None:
    return None if value is None else round(value / unit, 1)


def _text(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value  # bytes before nvidia-ml-py 12


def _say(event: str, **values: Any) -> None:
    print(json.dumps({"event": event, **values}), flush=True)


def main() -> None:
    """Sample into the file until standard input ends."""
    path, spec = sys.argv[1], json.loads(sys.argv[2])
    sys.path[:0] = [folder for folder in (spec.get("path") or "").split(os.pathsep) if folder]
    try:
        import pynvml as nvml
    except ImportError:
        _say("refused", why="nvidia-ml-py is not in the server's Python")
        return
    try:
        nvml.nvmlInit()
        visible = spec["visible"] if spec["visible"] is not None else os.environ.get("CUDA_VISIBLE_DEVICES")
        devices = [Device(nvml, index) for index in visible_devices(nvml, visible, spec["used"])]
    except nvml.NVMLError as error:
        _say("refused", why=f"NVML: {error}")
        return
    stopped = threading.Event()

    def wait() -> None:
        sys.stdin.readline()
        stopped.set()

    threading.Thread(target=wait, daemon=True).start()
    with open(path, "w", encoding="utf-8") as out:
        out.write(json.dumps({"gpus": [device.describe() for device in devices]}) + "\n")
        _say("sampling", gpus=len(devices))
        cost = sample_until(stopped, devices, out, float(spec["hz"]), spec["pids"])
        out.write(json.dumps({"cost": cost, "gpus": [device.closing(spec["pids"]) for device in devices]}) + "\n")
    nvml.nvmlShutdown()
    _say("stopped")


if __name__ == "__main__":
    main()
