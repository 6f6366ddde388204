"""Exceptions, and the one place where the integers of the kernels become sentences.

An error says who broke what: LocalProtocolError our caller, RemoteProtocolError the peer, InterfaceError the machine.
Knows no sockets and no state machine.
"""

from __future__ import annotations

from ttpoe.state import Failure, Status


class TTPoEError(Exception):
    """Base of all errors of this package."""


class LocalProtocolError(TTPoEError):
    """Our caller asked for something that the protocol or this package does not allow."""


class RemoteProtocolError(TTPoEError, ConnectionError):
    """The link ended, or never began, because of the peer."""


class PeerUnreachableError(RemoteProtocolError):
    """The peer answered nothing through the retry limit."""


class LinkRefusedError(RemoteProtocolError):
    """The peer refused our OPEN: it does not listen, or has no room."""


class LinkDownError(RemoteProtocolError):
    """The peer says that it does not know this link (any more)."""


class PeerRestartedError(RemoteProtocolError):
    """The peer opened anew on an open link, so its side of ours is gone."""


class ClosedByPeerError(RemoteProtocolError):
    """The peer closed while we still had, or want, something to send."""


class VictimError(RemoteProtocolError):
    """The peer opened the link and never used it, and another needed its place in the tag table."""


class InterfaceError(TTPoEError):
    """The network interface is missing, unsuitable, gone, or out of our reach."""


_STATUS_TEXT = {
    Status.OUT_FULL: "too many control frames wait to be sent; send what poll_transmit gives first",
    Status.NOT_OPEN: "the link is closed or closing",
    Status.ILLEGAL_SEND: "the state of the link does not allow it",
}

_FAILURES: dict[Failure, tuple[type[RemoteProtocolError], str]] = {
    Failure.RETRY_LIMIT: (PeerUnreachableError, "answered nothing through {retries} timeouts"),
    Failure.REFUSED: (LinkRefusedError, "refused the link: nobody listens there, or it has no room"),
    Failure.LINK_DOWN: (LinkDownError, "does not know this link any more"),
    Failure.PEER_RESTARTED: (PeerRestartedError, "restarted: it opened the link anew"),
    Failure.CLOSED_UNSENT: (ClosedByPeerError, "closed the link before it took all that was written"),
    Failure.VICTIM: (VictimError, "never used the link that it opened, and another peer took its place"),
}


def check_status(status: int, doing: str) -> int:
    """Give back the result of a kernel, or raise LocalProtocolError if it is a negative `Status`.

    Parameters
    ----------
    status : int
        What the kernel returned.
    doing : str
        What failed, as in "close".
    """
    if status < 0:
        raise LocalProtocolError(f"cannot {doing}: {_STATUS_TEXT[Status(status)]}")
    return status


def failure_error(failure: int, peer: str, retries: int) -> RemoteProtocolError | None:
    """Exception for ``link["failure"]``, or None if the link did not fail.

    Parameters
    ----------
    failure : int
        A `Failure`.
    peer : str
        Who, for the sentence: "98:ed:5c:00:00:02 vc 2".
    retries : int
        Timeouts in a row of the link.
    """
    if failure == Failure.NONE:
        return None
    kind, text = _FAILURES[Failure(failure)]
    return kind(f"the peer {peer} {text.format(retries=retries)}")
