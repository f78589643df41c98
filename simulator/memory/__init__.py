"""KV memory: blocks in use, cached prefixes, host stores. Every change keeps the count of free blocks exact."""
