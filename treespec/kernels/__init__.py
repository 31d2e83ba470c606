"""CPU kernels for passes over few rows, called by compiled code and as torch operations."""
