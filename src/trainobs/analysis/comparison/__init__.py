"""Two sides of runs: is one faster, by how much, and why.

`two_sides` puts it together. How much they differ: `part_means`, `intervals`, `welch`. Whether
their steps are the same thing: `step_kinds`, `step_work`. Under what, and with which settings:
`conditions`, `changes`.
"""
