"""Tests of what learned policies see."""
