"""Composites written in the primitives' operations, with no rules of their own."""
