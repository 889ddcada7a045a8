"""Pure functions over captures: no I/O."""
