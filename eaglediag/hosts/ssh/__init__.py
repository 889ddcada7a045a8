"""A machine over SSH: the user's ssh config, host keys, login, and what runs over the connection."""
