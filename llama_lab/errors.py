"""The ways a command ends badly without a traceback."""


class UserError(Exception):
    """The user's mistake: one line naming the setting, the value and the remedy. Exit code 2."""


class RunError(Exception):
    """A run that failed (non-finite loss, out of memory, disk full): one line. Exit code 1."""


class Diverged(RunError):
    """A loss or a weight that is not finite any more."""


class Stopped(BaseException):
    """A signal asked the run to stop, and it has: exit code 128 + the signal's number.

    Like KeyboardInterrupt no Exception: it is raised in the middle of anything, and code that
    catches whatever goes wrong must not take it for that.
    """

    def __init__(self, signum: int, message: str) -> None:
        super().__init__(message)
        self.signum = signum
