"""LLN inside other libraries: PyTorch's own modules, Hugging Face models."""
