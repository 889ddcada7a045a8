"""What a running server tells over HTTP, read through the host's connection."""

from __future__ import annotations

import http.client
import json
import time
from dataclasses import dataclass, field
from typing import Any

from eaglediag.capture.model import ModelShape, Server, Speculation
from eaglediag.errors import InstrumentationError, UsageError
from eaglediag.hosts.base import Host
from eaglediag.probes.evidence.metrics_page import MetricsSnapshot, drafting, parse_metrics
from eaglediag.probes.evidence.server_info import ServerInfo, parse_server_info

#: /server_info to 0.5.5 has the second name only.
SERVER_INFO = ("/server_info", "/get_server_info")
TIMEOUT_S = 10.0
#: Far above any metrics page: what is larger is not one.
LARGEST_PAGE = 64 * 1024 * 1024


class NoAnswer(Exception):
    """The server did not answer, or not with what was asked for. `status` is None without an answer."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


@dataclass
class Pages:
    """The server's pages. `spent_s` is how long each /metrics took: what reading it costs."""

    host: Host
    port: int
    address: str = "127.0.0.1"
    api_key: str | None = None
    spent_s: list[float] = field(default_factory=list)

    def get(self, path: str) -> bytes:
        """One page. Raises NoAnswer, HostError; InstrumentationError when the server wants another key."""
        connection = http.client.HTTPConnection(self.address, self.port, timeout=TIMEOUT_S)
        headers = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        try:
            stream = self.host.connect(self.port, self.address, TIMEOUT_S)
            stream.settimeout(TIMEOUT_S)
            connection.sock = stream
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            data = answer.read(LARGEST_PAGE)
        except (OSError, http.client.HTTPException) as error:
            raise NoAnswer(f"{path}: {str(error) or type(error).__name__}") from error
        finally:
            connection.close()
        if answer.status in (401, 403):
            raise InstrumentationError(
                f"{self.host.label}: the server refuses {path} (HTTP {answer.status})", "give its key with --api-key"
            )
        if answer.status != 200:
            raise NoAnswer(f"{path}: HTTP {answer.status}", answer.status)
        return data

    def metrics(self) -> MetricsSnapshot | None:
        """The metrics now; None when the server has them turned off. Raises NoAnswer, HostError."""
        begin = time.monotonic()
        try:
            page = parse_metrics(self.get("/metrics").decode(errors="replace"))
        except UsageError:
            return None  # an answer, but with no metric of an engine
        except NoAnswer as error:
            if error.status == 404:
                return None
            raise
        self.spent_s.append(time.monotonic() - begin)
        return page

    def server_info(self) -> ServerInfo | None:
        """SGLang's arguments and state; None where there is no such page. Raises NoAnswer, HostError."""
        for path in SERVER_INFO:
            document = self._document(path)
            if document is not None:
                try:
                    return parse_server_info(document)
                except UsageError:
                    continue
        return None

    def alive(self) -> None:
        """Raises NoAnswer when the server does not answer. Not by /health, for which SGLang generates a token."""
        self.get("/v1/models")

    def model_name(self) -> str:
        """The name requests must give; empty where the server does not say. Raises NoAnswer, HostError."""
        document = self._document("/v1/models") or {}
        models = document.get("data")
        first = models[0] if isinstance(models, list) and models else {}
        return str(first.get("id", ""))[:500] if isinstance(first, dict) else ""

    def vllm(self, page: MetricsSnapshot) -> Server:
        """What a vLLM server says of itself. Raises NoAnswer, HostError."""
        version = (self._document("/version") or {}).get("version")
        counted = drafting(page)
        positions = len(counted.accepted_by_position) if counted else 0
        settings = None
        if counted:
            settings = Speculation(algorithm="unknown")
            if positions:
                settings.num_steps, settings.num_draft_tokens = positions, positions + 1
        return Server(
            engine="vllm",
            release=str(version or "")[:500],
            model=ModelShape(path=page.model or self.model_name()),
            speculation=settings,
        )

    def _document(self, path: str) -> dict[str, Any] | None:
        """A page of JSON; None when the server has no such page."""
        try:
            document = json.loads(self.get(path))
        except NoAnswer as error:
            if error.status in (404, 405):
                return None
            raise
        except (ValueError, RecursionError):
            return None
        return document if isinstance(document, dict) else None
