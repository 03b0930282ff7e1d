"""What the lab runs: one package an op, one module a kernel; importing a module registers it."""
