"""The capture's JSON Schema, kept for other tools; `python -m eaglediag.capture.schema` renews it."""

from __future__ import annotations

import json
from pathlib import Path

from eaglediag.capture.model import Capture

PATH = Path(__file__).with_name("capture.schema.json")


def text() -> str:
    """The schema as it stands in the repository."""
    return json.dumps(Capture.model_json_schema(), indent=1, sort_keys=True) + "\n"


if __name__ == "__main__":
    PATH.write_text(text(), encoding="utf-8")
