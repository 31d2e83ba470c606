"""Proofs that nothing is lost: rules by enumeration, real pairs by tests of their samples."""
