"""Attention to a few keys: windows, buckets."""
