"""Kernels for passes over few rows on the CPU, called by compiled code and as operations of torch."""
