"""Attention through a few landmarks or projected keys."""
