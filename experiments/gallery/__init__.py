"""The gallery: a page for each environment, with an animation of two players on the same overloaded episode."""
