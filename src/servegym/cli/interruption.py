"""Ctrl-C, with a message on what is kept of the work."""

INTERRUPTED = 130  # exit status, as shells have it


class Interrupted(Exception):
    """A user stopped the command; the message says what is kept and how to go on."""
