"""The command line: ``python -m mpicoll``."""
