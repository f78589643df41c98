"""What makes generated pages, their tables and pictures, in `docs/`: `make docs`, and by hand."""
