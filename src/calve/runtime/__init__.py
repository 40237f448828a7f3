"""Wires one pipeline from top to bottom, finds Java, and starts Spark."""
