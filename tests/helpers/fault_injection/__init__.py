"""Kills and interruptions of runs at random moments.

A short experiment on the embedded pair runs once without any fault. Then it runs in processes of its own to
which faults happen, is resumed by the same command until it is finished, and must have the same rows as the
unbroken run, times and meters aside; a prompt that was finished before a fault must stand in the end as it
was, its times included.
"""
