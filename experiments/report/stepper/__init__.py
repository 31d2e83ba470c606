"""The stepper: shows decoding steps one at a time, in the report of a run and in notebooks."""
