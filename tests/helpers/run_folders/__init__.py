"""Run folders with known truth, for tests of what reads them."""
