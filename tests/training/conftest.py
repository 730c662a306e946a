"""The fixtures of runs."""

from tests.runs.conftest import *  # noqa: F403
