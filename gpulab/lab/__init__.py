"""The lab itself: run a kernel on a device, judge it, time or count it, and keep one record."""
