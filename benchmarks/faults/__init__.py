"""Small trainings with something wrong on purpose, to see whether verdicts name it.

Each fault is real: a throttled device, processes that take CPU time, a group short of memory; and
each has a remedy, which takes it away. What a fault changes outside its own processes is a control
group of its own, removed on every way out.

`training.py` and `machine.py` say what can be wrong, and `cases/` what is; `job.py` trains.
"""
