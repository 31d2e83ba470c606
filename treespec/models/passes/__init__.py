"""How passes run: compiled on a CPU, captured on CUDA, and the choice between them, made once at load."""
