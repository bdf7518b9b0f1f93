"""Every message of the protocol, in one table; the files are the conversations they belong to.

Add a new message to the file of its conversation: this package has all of their names.

What to open:

    header        the bases of all messages
    calls         actors, calls, answers, deadlock detection (edge chasing), requests to owners of
                  memory
    delivery      broadcast trees, and bulk
    lives         membership: which processes there are, and which have ended
    hosts         attachment, procs that a host makes and ends, their output
    generations   pushes of a workspace, and the switch of code
    programs      programs that a host runs for a person, and forwarded ports
    observe       held calls, stacks, environment
    telemetry     state, events and profiles of processes
"""

from monarch.wire.message.calls import *  # noqa: F403
from monarch.wire.message.delivery import *  # noqa: F403
from monarch.wire.message.generations import *  # noqa: F403
from monarch.wire.message.header import *  # noqa: F403
from monarch.wire.message.header import Message, Request
from monarch.wire.message.hosts import *  # noqa: F403
from monarch.wire.message.lives import *  # noqa: F403
from monarch.wire.message.observe import *  # noqa: F403
from monarch.wire.message.programs import *  # noqa: F403
from monarch.wire.message.telemetry import *  # noqa: F403


def kinds() -> tuple[type[Message], ...]:
    """Return every kind of message, for the decoder."""
    return (*(k for k in Message.__subclasses__() if k is not Request), *Request.__subclasses__())
