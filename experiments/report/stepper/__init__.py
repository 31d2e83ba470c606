"""Steps of decoding, one at a time: in the report of a run and in notebooks."""
