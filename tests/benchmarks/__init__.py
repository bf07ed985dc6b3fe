"""Measurements to run by hand: each prints a table, none of them is a test."""
