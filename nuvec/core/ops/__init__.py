"""The primitives, one family a file, every rule beside the operation it belongs to."""
