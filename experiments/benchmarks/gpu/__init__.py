"""`make gpu`: is the kernel right, how fast is it, and what does decoding cost on this device?

    python -m treespec.experiments.benchmarks.gpu [accuracy|kernels|decode|table|all] [--dry] [--out FOLDER]

Each part writes `gpu_<part>-<device>.json` after every figure that it has measured, and a run that was
killed goes on where it stopped. `table` renders these files. Without a CUDA device the same code runs over
tiny shapes, the kernel through Triton's interpreter: a rehearsal whose figures mean nothing.
"""
