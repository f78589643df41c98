"""What `make site` needs beside mkdocs.yml: hooks, the reference, the style."""
