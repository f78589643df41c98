"""Task: how many tokens to draft."""
