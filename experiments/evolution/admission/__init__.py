"""Task: which requests an overloaded engine leaves out."""
