"""Speed and memory, each figure beside a reference that was measured in the same run."""
