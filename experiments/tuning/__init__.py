"""Studies of parameters: pages of what tunings came to, and one study of a default."""
