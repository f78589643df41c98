"""What learned policies see: compiled functions that environments and policies share."""
