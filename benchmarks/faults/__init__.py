"""Faults that are put into a small training on purpose, to see whether its verdict names them.

Each is real: a throttled device, processes that take CPU time, a group short of memory. What a
fault changes outside its own processes is a control group of its own, removed on every way out.
"""
