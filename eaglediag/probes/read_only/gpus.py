"""The GPUs of a server that already runs: the usual sampler, alone in a folder that removes itself."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from eaglediag.capture.model import Gpu, Window
from eaglediag.errors import HostError, InstrumentationError
from eaglediag.hosts.base import Host, Process
from eaglediag.probes.folder import RemoteFolder
from eaglediag.probes.gpu import GpuSampler, Sampling
from eaglediag.probes.launch import LaunchCommand
from eaglediag.probes.preflight import find_python

SAMPLER = "gpu_sampler.py"
PYTHON = "python3"
GUARD_WITHIN_S = 10.0


class GpuWatch:
    """One host's sampler. Use as a context manager: the folder is gone at the end, also when the connection is lost."""

    def __init__(self, host: Host, python: str | None, parent: str) -> None:
        self.host = host
        self.python = python
        self.folder = RemoteFolder(host, parent)
        self.refused = ""
        self._guard: Process | None = None
        self._sampler: GpuSampler | None = None

    def __enter__(self) -> GpuWatch:
        return self

    def start(self, hz: float) -> None:
        """Begin to sample every GPU of the host; `refused` says why not. Raises HostError."""
        try:
            python = find_python(self.host, LaunchCommand.parse(PYTHON), self.python)
        except InstrumentationError:
            self.refused = f"{self.python or PYTHON} is not there; name a Python that has nvidia-ml-py with --python"
            return
        self._guard = self.folder.guard()
        self.folder.ship(python, only=(SAMPLER,))
        self._sampler = GpuSampler(self.host, self.folder, python)
        self._sampler.start(hz, (), {})

    def stop(self, windows: Sequence[Window]) -> Sampling:
        """End sampling: the GPUs that something ran on, or why nothing is known of them. Never raises."""
        if self._sampler is None:
            return Sampling(refused=self.refused)
        sampling = self._sampler.stop(windows)
        sampling.gpus = in_use(sampling.gpus)
        return sampling

    def __exit__(self, *_: object) -> None:
        guard = self._guard
        if guard is None:
            return
        if self._sampler is not None:
            self._sampler.stop(())
        with suppress(OSError):
            guard.stdin.close()
        try:
            self.folder.gone = guard.wait(GUARD_WITHIN_S) == 0
        except (TimeoutError, HostError):
            guard.kill()
        guard.__exit__(None, None, None)
        self.folder.remove()


def in_use(gpus: Sequence[Gpu]) -> list[Gpu]:
    """The GPUs with a process on them; all where NVML shows no process at all, as in most containers.

    Whose the processes are is not known, so none is kept: to call the server's own a stranger would be wrong.
    """
    used = [gpu for gpu in gpus if gpu.processes] or list(gpus)
    for gpu in used:
        if gpu.processes:
            gpu.processes = []
            gpu.unsupported = [*gpu.unsupported, "processes (which are the server's is not known)"]
    return used
