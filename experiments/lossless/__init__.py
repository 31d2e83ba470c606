"""Proofs of losslessness: rules by exact enumeration, real pairs by statistical tests of samples."""
