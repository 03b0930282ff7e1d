"""Error measures, gates, inputs, and the arithmetic of the hardware, bit for bit."""
