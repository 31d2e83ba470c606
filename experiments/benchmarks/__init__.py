"""Benchmarks: what is claimed about speed, measured side by side in one run and printed as ratios.

Each is a module to run (`python -m treespec.experiments.benchmarks.loop_overhead`) and writes its
figures with hardware, versions and git hash into `experiments/benchmarks/results/`.
"""
