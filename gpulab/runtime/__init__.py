"""Compilation, caching, launch and timing: everything that touches a device."""
