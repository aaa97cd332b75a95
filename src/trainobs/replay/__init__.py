"""Replay of a run from its own record: what would a step take if something were different?"""
