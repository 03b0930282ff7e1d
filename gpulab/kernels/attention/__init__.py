"""Attention kernels: one declaration a module."""
