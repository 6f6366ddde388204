"""The way out of an endpoint: the rate of its line, and whether a PAUSE or PFC frame forbids to send.

Between socket and driver: knows no links.
"""

from __future__ import annotations

from ttpoe.clock import now_ps
from ttpoe.config import EndpointConfig
from ttpoe.pause import PortPause, build_pause, quanta_of
from ttpoe.rawsock import RawSocket

_DEFAULT_RATE_BPS = 10 * 10**9  # where neither config nor interface tell: what veth pairs say of themselves


class Port:
    """Tells when to send, and others when not to.

    Parameters
    ----------
    sock : RawSocket
    config : EndpointConfig

    Attributes
    ----------
    rate_bps : int
        What quanta count by.
    pause : PortPause or None
        What PAUSE and PFC frames have told, if the socket takes them.
    """

    def __init__(self, sock: RawSocket, config: EndpointConfig) -> None:
        self.rate_bps = config.line_rate_bps or sock.ask_rate_bps() or _DEFAULT_RATE_BPS
        self.pause: PortPause | None = None
        if sock.control_sock is not None:
            self.pause = PortPause(sock.mac, self.rate_bps, config.pfc_priority)
        self._sock = sock

    def is_paused(self) -> bool:
        """Whether a PAUSE or PFC that has arrived by now forbids to send."""
        if self.pause is None:
            return False
        at_ps = now_ps()
        for frame in self._sock.receive_control():
            self.pause.take(frame, at_ps)
        return self.pause.is_paused(at_ps)

    @property
    def paused_ps(self) -> int:
        """Time that PAUSE and PFC frames have kept us from sending."""
        return 0 if self.pause is None else self.pause.paused_ps(now_ps())

    def send_pause(self, time_ps: int, priority: int) -> None:
        """Have the port at the other end of our line stop sending for a time, or go on if that is 0.

        Parameters
        ----------
        time_ps : int
            Counted in quanta, of which there may be 65535.
        priority : int
            Named in a PFC frame, or `ttpoe.pause.ALL` for a PAUSE, which stops all.

        Raises
        ------
        ValueError
            A longer time than a frame can say.
        OSError
            The interface does not take the frame.
        """
        self._sock.send(build_pause(self._sock.mac, {priority: quanta_of(time_ps, self.rate_bps)}))
