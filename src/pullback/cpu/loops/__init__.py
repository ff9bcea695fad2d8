"""The loop nests, one file for each."""
