"""Experiments as data: each function runs one comparison and returns what tables and figures show."""
