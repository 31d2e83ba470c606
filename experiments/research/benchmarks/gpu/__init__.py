"""`make gpu`: test whether the kernel is right, how fast it is, and what decoding costs on this device.

    python -m treespec.experiments.research.benchmarks.gpu [PART|table|all] [--dry] [--out FOLDER]

Each part writes `gpu_<part>-<device>.json` after every measured figure, and measures what this file lacks;
`table` prints these files. Without a CUDA device the same code runs over tiny shapes, with the kernel in
Triton's interpreter: a rehearsal whose figures mean nothing.
"""
