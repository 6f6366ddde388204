"""Captures from both worlds: read, write, dissect, measure and plot."""
