"""Linear attention by feature maps, and LLN's closest relatives."""
