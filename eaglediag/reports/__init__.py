"""Renderers: each takes a result and returns or prints text, and opens no file."""
