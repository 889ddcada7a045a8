"""The GPU sampler against recorded NVML replies, and its rows as the capture has them."""

from __future__ import annotations

import gzip
import io
import json
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from eaglediag.capture.model import Window
from eaglediag.hosts import open_host
from eaglediag.probes.folder import RemoteFolder
from eaglediag.probes.gpu import MAX_SAMPLES, GpuSampler, Samples, Sampling, read, sampled
from eaglediag.probes.payload.gpu_sampler import COLUMNS, FIELDS, Device, sample_until, visible_devices

RECORDED = Path(__file__).parents[1] / "data" / "h200" / "nvml-h200.json.gz"
NOT_SUPPORTED, FUNCTION_NOT_FOUND, GPU_IS_LOST = 3, 13, 15


class NVMLError(Exception):
    def __init__(self, value: int, text: str = "Not Supported") -> None:
        super().__init__(text)
        self.value = value


class Nvml:
    """pynvml's functions, answering from a table: "function" or "function:argument" to a value or an exception.

    What the table does not hold, this library does not have (as an older one would not).
    """

    NVMLError = NVMLError

    def __init__(self, *answers: dict[str, Any], count: int = 1) -> None:
        self.answers: dict[str, Any] = {}
        for table in answers:
            self.answers.update(table)
        self.calls: list[str] = []
        self.count = count

    def nvmlDeviceGetCount(self) -> int:
        return self.count

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetFieldValues(self, handle: int, fields: list[int]) -> list[Any]:
        known = self.answers["fields"]
        if isinstance(known, Exception):
            raise known
        numbers = {number: name for name, number in self.answers["field_ids"].items()}
        values = [known[numbers[field]] for field in fields]
        return [
            SimpleNamespace(
                nvmlReturn=0 if value is not None else NOT_SUPPORTED, valueType=3, value=SimpleNamespace(ullVal=value)
            )
            for value in values
        ]

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("nvmlDevice") or not any(key.split(":")[0] == name for key in self.answers):
            raise AttributeError(name)

        def call(handle: int, *arguments: int) -> Any:
            key = ":".join([name, *map(str, arguments)])
            self.calls.append(key)
            answer = self.answers.get(key, NVMLError(NOT_SUPPORTED))
            if isinstance(answer, Exception):
                raise answer
            if isinstance(answer, dict) and "error" in answer:
                raise NVMLError(NOT_SUPPORTED, answer["text"])
            return SimpleNamespace(**answer) if isinstance(answer, dict) else answer

        return call


@pytest.fixture(scope="module")
def recorded() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(gzip.decompress(RECORDED.read_bytes()))
    return document


def h200(recorded: dict[str, Any], sample: dict[str, Any]) -> Nvml:
    return Nvml(recorded["static"], sample)


class TestH200:
    def test_what_it_is_and_what_limits_it(self, recorded: dict[str, Any]) -> None:
        device = Device(h200(recorded, recorded["idle"][0]), 0)
        described = device.describe()
        assert described["name"] == "NVIDIA H200"
        assert described["memory_mb"] == 143771
        assert (described["sm_mhz_max"], described["sm_mhz_application"]) == (1980, 1980)
        assert (described["power_limit_w"], described["power_limit_default_w"]) == (700.0, 700.0)
        assert (described["ecc"], described["mig"], described["persistence"]) == (True, False, True)
        assert (described["pcie_generation"], described["pcie_width"]) == (5, 16)

    def test_links_that_are_not_supported_are_unknown_not_zero(self, recorded: dict[str, Any]) -> None:
        device = Device(h200(recorded, recorded["idle"][0]), 0)
        described = device.describe()
        assert described["nvlinks"] is None
        assert described["nvlink_version"] is None
        assert "nvlinks" in device.unsupported

    def test_a_sample_under_load(self, recorded: dict[str, Any]) -> None:
        device = Device(h200(recorded, recorded["load"][-1]), 0)
        row = dict(zip(COLUMNS, device.sample(), strict=True))
        assert row == {
            "sm_mhz": 1470, "memory_mhz": 3201, "power_w": 691.9, "temperature_c": 55,
            "utilisation_percent": 99, "pstate": 0, "reasons": 4,
        }  # fmt: skip
        assert not device.unsupported

    def test_cumulative_counters_are_nanoseconds_made_milliseconds(self, recorded: dict[str, Any]) -> None:
        counters = Device(h200(recorded, recorded["load"][-1]), 0).counters()
        assert counters["sw_power_cap"] == pytest.approx(5708.679136)
        assert counters["violation_power"] == pytest.approx(5786.169632)
        assert counters["hw_thermal_slowdown"] == 0.0
        assert set(FIELDS) < set(counters)


#: A GeForce under an older driver: no application clocks, no ECC, MIG or NVLink, no violation counters, the old name.
GEFORCE = {
    "nvmlDeviceGetName": b"NVIDIA GeForce RTX 3060",
    "nvmlDeviceGetUUID": b"GPU-aaaa",
    "nvmlDeviceGetMemoryInfo": {"total": 12 * 2**30},
    "nvmlDeviceGetEccMode": NVMLError(NOT_SUPPORTED),
    "nvmlDeviceGetMigMode": NVMLError(NOT_SUPPORTED),
    "nvmlDeviceGetPersistenceMode": 0,
    "nvmlDeviceGetMaxClockInfo:1": 2130,
    "nvmlDeviceGetApplicationsClock:1": NVMLError(NOT_SUPPORTED),
    "nvmlDeviceGetPowerManagementLimit": 170000,
    "nvmlDeviceGetPowerManagementDefaultLimit": 170000,
    "nvmlDeviceGetCurrPcieLinkGeneration": 1,
    "nvmlDeviceGetCurrPcieLinkWidth": 16,
    "nvmlDeviceGetNvLinkState:0": NVMLError(NOT_SUPPORTED),
    "nvmlDeviceGetClockInfo:1": 1807,
    "nvmlDeviceGetClockInfo:2": 7300,
    "nvmlDeviceGetPowerUsage": 121500,
    "nvmlDeviceGetTemperature:0": 61,
    "nvmlDeviceGetUtilizationRates": NVMLError(NOT_SUPPORTED),
    "nvmlDeviceGetPerformanceState": 2,
    "nvmlDeviceGetCurrentClocksEventReasons": NVMLError(FUNCTION_NOT_FOUND, "Function Not Found"),
    "nvmlDeviceGetCurrentClocksThrottleReasons": 4,
    "nvmlDeviceGetViolationStatus:0": NVMLError(NOT_SUPPORTED),
    "fields": NVMLError(FUNCTION_NOT_FOUND, "Function Not Found"),
    "field_ids": {},
}


class TestGeForce:
    def test_not_supported_is_none_and_named(self) -> None:
        device = Device(Nvml(GEFORCE), 0)
        described = device.describe()
        row = dict(zip(COLUMNS, device.sample(), strict=True))
        assert described["name"] == "NVIDIA GeForce RTX 3060"
        assert described["sm_mhz_application"] is None
        assert described["ecc"] is None
        assert described["mig"] is None
        assert described["persistence"] is False
        assert described["power_limit_w"] == 170.0
        assert row["utilisation_percent"] is None
        assert row["pstate"] == 2
        assert device.counters() == {}
        assert set(device.unsupported) == {
            "sm_mhz_application", "ecc", "mig", "nvlinks", "utilisation_percent", "counters",
            "violation_power", "violation_thermal", "violation_sync_boost", "violation_board_limit",
        }  # fmt: skip

    def test_the_older_name_of_the_reasons(self) -> None:
        device = Device(Nvml(GEFORCE), 0)
        assert dict(zip(COLUMNS, device.sample(), strict=True))["reasons"] == 4
        without = {key: value for key, value in GEFORCE.items() if "EventReasons" not in key}
        assert Device(Nvml(without), 0).sample()[-1] == 4

    def test_what_is_not_supported_is_not_asked_again(self) -> None:
        nvml = Nvml(GEFORCE)
        device = Device(nvml, 0)
        device.sample()
        device.sample()
        assert nvml.calls.count("nvmlDeviceGetUtilizationRates") == 1

    def test_a_failure_is_not_a_lack(self) -> None:
        answers = {**GEFORCE, "nvmlDeviceGetPowerUsage": NVMLError(GPU_IS_LOST, "GPU is lost")}
        nvml = Nvml(answers)
        device = Device(nvml, 0)
        assert device.sample()[2] is None
        assert device.errors == {"power_w": "GPU is lost"}
        nvml.answers["nvmlDeviceGetPowerUsage"] = 99000
        assert device.sample()[2] == 99.0
        assert "power_w" not in device.unsupported

    def test_one_field_of_several_can_be_missing(self, recorded: dict[str, Any]) -> None:
        sample = recorded["load"][-1]
        fields = {**sample["fields"], "NVML_FI_DEV_CLOCKS_EVENT_REASON_SYNC_BOOST": None}
        device = Device(Nvml(recorded["static"], sample, {"fields": fields}), 0)
        assert "sync_boost" not in device.counters()
        assert device.unsupported == ["sync_boost"]
        assert device.counters()["sw_power_cap"] > 0


class TestNvlink:
    def test_active_links_and_their_version(self) -> None:
        states = {f"nvmlDeviceGetNvLinkState:{link}": int(link != 2) for link in range(4)}
        nvml = Nvml(GEFORCE, states, {"nvmlDeviceGetNvLinkVersion:0": 4})
        device = Device(nvml, 0)
        described = device.describe()
        assert (described["nvlinks"], described["nvlink_version"]) == (3, 4)
        assert "nvlinks" not in device.unsupported


class TestVisibleDevices:
    @pytest.fixture
    def nvml(self) -> Any:
        uuids = ["GPU-aaaa", b"GPU-bbbb", "GPU-abcd", "GPU-dddd"]
        return SimpleNamespace(
            nvmlDeviceGetCount=lambda: 4, nvmlDeviceGetHandleByIndex=lambda i: i, nvmlDeviceGetUUID=lambda i: uuids[i]
        )

    @pytest.mark.parametrize(
        ("visible", "used", "expected"),
        [
            (None, None, [0, 1, 2, 3]),
            (None, [1, 0, 1], [0, 1]),
            ("2,3", None, [2, 3]),
            ("2,3", [1], [3]),
            ("GPU-bbbb,GPU-aaaa", None, [1, 0]),
            ("GPU-ab", None, [2]),
            ("1,-1,2", None, [1]),
            ("", None, []),
            ("1,9,2", None, [1]),
        ],
    )
    def test_as_cuda_reads_it(
        self, nvml: Any, visible: str | None, used: list[int] | None, expected: list[int]
    ) -> None:
        assert visible_devices(nvml, visible, used) == expected


class TestProcesses:
    def test_company_is_told_from_the_servers_own(self) -> None:
        seen = [SimpleNamespace(pid=10, usedGpuMemory=2**30), SimpleNamespace(pid=77, usedGpuMemory=None)]
        device = Device(Nvml({"nvmlDeviceGetComputeRunningProcesses": seen}), 0)
        device.look_for_company([10])
        assert device.closing([10])["processes"] == [
            {"pid": 10, "memory_mb": 1024.0, "ours": True},
            {"pid": 77, "memory_mb": None, "ours": False},
        ]

    def test_pids_of_another_namespace_tell_nothing(self) -> None:
        seen = [SimpleNamespace(pid=4242, usedGpuMemory=2**30)]
        device = Device(Nvml({"nvmlDeviceGetComputeRunningProcesses": seen}), 0)
        device.look_for_company([10])
        closing = device.closing([10])
        assert closing["processes"] == []
        assert "processes (pids of another namespace)" in closing["unsupported"]


class TestSampling:
    def test_rows_counters_and_cost(self, recorded: dict[str, Any]) -> None:
        devices = [Device(h200(recorded, recorded["load"][-1]), 0), Device(h200(recorded, recorded["idle"][0]), 1)]
        out, stopped = io.StringIO(), threading.Event()
        out.write(json.dumps({"gpus": [device.describe() for device in devices]}) + "\n")
        threading.Timer(0.5, stopped.set).start()
        begin = time.time()
        cost = sample_until(stopped, devices, out, 20.0, [])
        out.write(json.dumps({"cost": cost, "gpus": [device.closing([]) for device in devices]}) + "\n")
        samples = read(out.getvalue())
        assert not samples.unfinished
        assert 3 <= cost["samples"] <= 14
        assert cost["ms_per_sample"] >= 0
        assert [len(rows) for rows in samples.rows] == [cost["samples"]] * 2
        assert all(len(counters) >= 2 for counters in samples.counters)
        gpus = sampled(samples, [Window(id="c1", started=begin + 0.1, duration_s=0.3)], "host").gpus
        assert [gpu.series.sm_mhz[0] for gpu in gpus] == [1470, 345]
        assert begin - 0.001 < gpus[0].series.t[0] <= gpus[0].series.t[-1] <= time.time()

    def test_a_slow_gpu_is_not_asked_more_often_to_catch_up(self) -> None:
        class Slow(Device):
            def sample(self) -> list[Any]:
                time.sleep(0.05)
                return [None] * len(COLUMNS)

        stopped = threading.Event()
        threading.Timer(0.4, stopped.set).start()
        cost = sample_until(stopped, [Slow(Nvml(GEFORCE), 0)], io.StringIO(), 100.0, [])
        assert cost["samples"] <= 10


def samples_with(counters: list[tuple[float, dict[str, float]]]) -> Samples:
    return Samples([{"index": 0, "name": "GPU"}], rows=[[]], counters=[counters])


class TestThrottled:
    def test_the_rise_within_a_window_between_readings(self) -> None:
        rising = [(100.0 + 0.5 * i, {"sw_power_cap": 250.0 * i, "sync_boost": 7.0}) for i in range(21)]
        window = Window(id="c1", started=102.25, duration_s=4.0)
        held = sampled(samples_with(rising), [window], "host").gpus[0].throttled_ms
        assert held == {"c1": {"sw_power_cap": 2000.0, "sync_boost": 0.0}}

    @pytest.mark.parametrize("started", [99.0, 104.0])
    def test_a_window_that_the_counters_do_not_cover_has_none(self, started: float) -> None:
        counters = [(100.0, {"sw_power_cap": 0.0}), (105.0, {"sw_power_cap": 900.0})]
        window = Window(id="c1", started=started, duration_s=3.0)
        assert sampled(samples_with(counters), [window], "host").gpus[0].throttled_ms == {}


def test_long_series_are_summed_up_and_no_reason_is_lost() -> None:
    rows = [[float(i), 1000.0 + i % 2, None, 300.0, 50, 90, 0, 4 if i == 777 else 0] for i in range(3 * MAX_SAMPLES)]
    series = sampled(Samples([{"index": 0}], rows=[rows], counters=[[]]), [], "host").gpus[0].series
    assert len(series.t) == MAX_SAMPLES
    assert series.memory_mhz[0] is None
    assert sum(reasons == 4 for reasons in series.reasons) == 1
    assert {len(column) for column in series.model_dump().values()} == {MAX_SAMPLES}


def test_a_file_that_was_cut_off_keeps_what_it_has() -> None:
    text = '{"gpus": [{"index": 0, "name": "NVIDIA H200"}]}\n[0, 1.0, 345, 3201, 77.0, 33, 0, 0, 1]\n[0, 2.0, 34'
    samples = read(text)
    assert samples.unfinished
    assert len(samples.rows[0]) == 1
    assert sampled(samples, [], "host").cost is None


class TestOnTheHost:
    """The script itself, as the laptop starts it."""

    def sampler(self, tmp_path: Path, library: str) -> GpuSampler:
        host = open_host("local")
        folder = RemoteFolder(host, str(tmp_path))
        folder.ship(sys.executable)
        (tmp_path / "pynvml.py").write_text(library)
        return GpuSampler(host, folder, sys.executable)

    def test_without_the_library_it_is_refused_by_name(self, tmp_path: Path) -> None:
        sampler = self.sampler(tmp_path, "raise ImportError")
        sampler.start(10.0, [], {"PYTHONPATH": str(tmp_path)})
        assert sampler.stop([]) == Sampling(refused="nvidia-ml-py is not in the server's Python")

    def test_without_a_driver_it_is_refused_in_nvmls_words(self, tmp_path: Path) -> None:
        library = "class NVMLError(Exception): pass\ndef nvmlInit(): raise NVMLError('Driver Not Loaded')\n"
        sampler = self.sampler(tmp_path, library)
        sampler.start(10.0, [], {"PYTHONPATH": str(tmp_path)})
        assert sampler.stop([]).refused == "NVML: Driver Not Loaded"

    def test_it_samples_what_the_ranks_use_until_stopped(self, tmp_path: Path) -> None:
        library = (
            "class NVMLError(Exception): value = 3\n"
            "def nvmlInit(): pass\n"
            "def nvmlShutdown(): pass\n"
            "def nvmlDeviceGetCount(): return 3\n"
            "def nvmlDeviceGetHandleByIndex(index): return index\n"
            "def nvmlDeviceGetUUID(handle): return f'GPU-{handle}'\n"
            "def nvmlDeviceGetName(handle): return 'Three'\n"
            "def nvmlDeviceGetClockInfo(handle, kind): return 1000 + handle\n"
        )
        sampler = self.sampler(tmp_path, library)
        ranks = [{"gpu": 1, "pid": 77, "visible_gpus": "0,2"}]
        sampler.start(50.0, ranks, {"PYTHONPATH": str(tmp_path), "CUDA_VISIBLE_DEVICES": "1"})
        time.sleep(0.3)
        sampling = sampler.stop([])
        assert not sampling.refused
        assert [gpu.index for gpu in sampling.gpus] == [2]
        assert set(sampling.gpus[0].series.sm_mhz) == {1002.0}
        assert "temperature_c" in sampling.gpus[0].unsupported
        assert sampling.cost is not None
        assert sampling.cost.samples > 3
