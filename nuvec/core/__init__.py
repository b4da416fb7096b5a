"""The IR and everything that gives it meaning."""
