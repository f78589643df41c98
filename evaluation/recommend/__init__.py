"""Recommends settings and a number of engines for the traffic of a recording."""
