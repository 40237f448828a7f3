"""Executes statements: create, alter, show, analyze, select. Each is checked before it is applied."""
