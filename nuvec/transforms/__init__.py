"""Passes over the IR: differentiation, batching, custom rules, control flow, compilation."""
