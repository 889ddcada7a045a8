"""A probe of a server that already runs: nothing is started, put into it or changed, only read."""
