"""The communications: each operation with all its rules, transpose pairs together."""
