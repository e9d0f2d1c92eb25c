"""Sums over shards and ranks whose bits do not depend on who computed what, nor on the order of additions."""
