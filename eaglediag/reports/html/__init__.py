"""The report as one HTML file that fetches nothing: the verdict, then pictures with their tables, denials, advice."""

from eaglediag.reports.html.page import render

__all__ = ["render"]
