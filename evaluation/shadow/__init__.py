"""What another policy would have gained where one is running: `servegym shadow`."""
