"""Ways for the ranks of a group to reach each other."""
