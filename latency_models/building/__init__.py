"""Recipes that make the profiles that ship, from tables under $SERVEGYM_DATA."""
