"""Measurements beyond a row's time: ladders, ceilings, the tuning of tiles, plots."""
