"""Rules by other means: on the host, as one CPU kernel, or as one Triton kernel on the device."""
