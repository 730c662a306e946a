"""Readers of one file each: plain text, JSON, tables, Parquet, and datasets of the Hub.

Each streams: what it holds at once does not grow with the file.
"""
