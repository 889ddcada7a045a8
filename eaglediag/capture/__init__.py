"""The capture file: typed, versioned, validated."""
