"""Machines to probe: this one, one over SSH, a container on either."""
