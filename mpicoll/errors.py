"""Every exception that mpicoll raises on purpose, and the one formatter of their texts.

::

    MpicollError
    ├── ArgumentError           (ValueError)    a call that cannot be right, found before anything is sent
    ├── DTypeError              (TypeError)     a dtype, device or kind of object that cannot be used so
    ├── NotInitializedError     (ValueError, RuntimeError)  a call before init, after destroy or after MPI's end
    ├── LaunchError             (RuntimeError)  the job was started in a way that cannot be meant
    ├── ThreadLevelError        (RuntimeError)  the MPI was started with too low a thread level for this call
    ├── MessageError            (RuntimeError)  a message arrived that does not fit the tensor it was meant for
    ├── ObjectError             (RuntimeError)  a rank could not pickle what it was to send, or unpickle what it got
    ├── CollectiveTimeoutError  (TimeoutError, RuntimeError)  a wait took longer than its time-out
    └── MPIError                (RuntimeError)  the MPI library reported an error

The second base is what torch.distributed raises in such a case, so that ported code which catches it still does.
"""

from __future__ import annotations

__all__ = [
    "ArgumentError",
    "CollectiveTimeoutError",
    "DTypeError",
    "LaunchError",
    "MPIError",
    "MessageError",
    "MpicollError",
    "NotInitializedError",
    "ObjectError",
    "ThreadLevelError",
    "mismatch",
]


class MpicollError(Exception):
    """The base of every exception that mpicoll raises on purpose.

    The text is ``<op>(group=<name>, rank r of n): <what is wrong>: expected <x>, got <y>. <what to do>``. What is wrong
    is known where it is found; the operation, group and rank are put before it once, where the call came in.
    """

    located = False

    def locate(self, where: str) -> None:
        """Put ``where`` (``all_reduce(group=world, rank 0 of 2)``) before the text, unless a place is there already."""
        if not self.located:
            self.args = (f"{where}: {self}", *self.args[1:])
            self.located = True


class ArgumentError(MpicollError, ValueError):
    """A call that cannot be right. It is found on this rank, before anything is sent."""


class DTypeError(MpicollError, TypeError):
    """A dtype, a device or a kind of object that the operation cannot take. Found before anything is sent."""


class NotInitializedError(MpicollError, ValueError, RuntimeError):
    """A call before ``init_process_group``, after ``destroy_process_group``, or after MPI has been finalised."""


class LaunchError(MpicollError, RuntimeError):
    """The job was started in a way that cannot be meant: see the text for the likely cause and the command to use."""


class ThreadLevelError(MpicollError, RuntimeError):
    """MPI was started with a thread level that does not allow this call."""


class MessageError(MpicollError, RuntimeError):
    """A point-to-point message arrived whose dtype or number of elements is not that of the receiving tensor."""


class ObjectError(MpicollError, RuntimeError):
    """An object cannot be pickled, or unpickled where it arrived. The text names the rank it is of, and the error."""


class CollectiveTimeoutError(MpicollError, TimeoutError, RuntimeError):
    """``Work.wait`` or ``monitored_barrier`` took longer than its time-out."""


class MPIError(MpicollError, RuntimeError):
    """The MPI library reported an error. ``__cause__`` is mpi4py's exception."""


def mismatch(what: str, expected: object, got: object, remedy: str = "") -> str:
    """The text of most errors: what is wrong, both values, and one remedy.

    >>> mismatch("length of tensor_list", 4, 3, "Give one tensor for each rank")
    'length of tensor_list: expected 4, got 3. Give one tensor for each rank'
    """
    return f"{what}: expected {expected}, got {got}" + (f". {remedy}" if remedy else "")
