"""Controlled studies: arms times seeds, run alike, compared with statistics, and reported."""
