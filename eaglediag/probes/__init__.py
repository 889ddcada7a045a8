"""Everything that observes: one module an instrument."""
