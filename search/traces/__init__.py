"""How often children are accepted: traces, rates estimated from them, replay and calibration."""
