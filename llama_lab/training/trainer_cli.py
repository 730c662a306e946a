"""The command line of runs, under the name by which scripts know it."""

from llama_lab.runs.command_line import LabCLI, main, quiet

__all__ = ["LabCLI", "main", "quiet"]
