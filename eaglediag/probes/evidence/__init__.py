"""Readers of evidence that already exists: server logs, metrics pages, benchmark files, profiler traces."""
