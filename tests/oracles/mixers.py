"""Mechanisms that start from tokens."""
