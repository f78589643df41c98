"""Task: which engine prefills a request, and which one decodes it."""
