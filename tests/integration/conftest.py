"""Fixtures of the integration tests."""

from tests.sshd import password_user, sshd, start_sshd

__all__ = ["password_user", "sshd", "start_sshd"]
