"""How often children are accepted: rates, what they were estimated from, traces, replay and calibration."""
