"""Task: which engine of four a request is sent to."""
