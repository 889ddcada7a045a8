"""Reads a launch command before anything runs: what it will silently not do, and what cannot work."""

from eaglediag.analysis.launch_lint.check import lint
from eaglediag.analysis.launch_lint.finding import Finding, Rules

__all__ = ["Finding", "Rules", "lint"]
