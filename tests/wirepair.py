"""Two endpoints on an in-memory wire with a virtual clock and seeded impairments."""

from __future__ import annotations

from collections.abc import Callable

from ttpoe.config import EndpointConfig
from ttpoe.endpoint import Endpoint
from ttpoe.impair import Impairment
from ttpoe.units import NEVER, PS_PER_US

MAC_A, MAC_B = 0x98ED5C000001, 0x98ED5C000002
HOP_PS = 10 * PS_PER_US
FRAMES_PER_HOP = 200  # an endpoint has room for 512 answers


class WirePair:
    """Endpoints ``a`` and ``b``; ``b`` listens."""

    def __init__(
        self,
        config: EndpointConfig | None = None,
        *,
        draw_seq: Callable[[], int] = lambda: 1000,
        impairments: tuple[Impairment, Impairment] | None = None,
        ips: tuple[int, int] = (0, 0),
    ) -> None:
        config = config or EndpointConfig(idle_timeout_ps=NEVER)  # so that there is an end to what runs
        self.a = Endpoint(MAC_A, config, ip=ips[0], draw_seq=draw_seq)
        self.b = Endpoint(MAC_B, config, ip=ips[1], draw_seq=draw_seq)
        self.b.is_listening = True
        self.now_ps = 0
        self.is_cut = False
        self.frames: list[tuple[str, bytes]] = []
        self._impairments = impairments

    def step(self) -> bool:
        """One hop of time: each end hears what the other had to say; False if nobody had anything."""
        batches = []
        for way, source in enumerate((self.a, self.b)):
            frames = []
            while len(frames) < FRAMES_PER_HOP and (frame := source.poll_transmit(self.now_ps)) is not None:
                frames.append(bytes(frame))
                self.frames.append(("ab"[way], frames[-1]))
                if self._impairments is not None:
                    frames[-1:] = self._impairments[way].pass_frame(frames[-1], self.now_ps)
            if self._impairments is not None:
                frames += self._impairments[way].leave(self.now_ps)
            batches.append(frames)
        self.now_ps += HOP_PS
        for sink, frames in zip((self.b, self.a), batches, strict=True):
            if not self.is_cut:
                sink.receive(frames, self.now_ps)
        return any(batches)

    def wait(self) -> bool:
        """Jump to the next deadline; False if no timer runs."""
        deadline_ps = min(self.a.next_deadline_ps(), self.b.next_deadline_ps())
        for impairment in self._impairments or ():
            deadline_ps = min(deadline_ps, impairment.next_deadline_ps())
        if deadline_ps == NEVER:
            return False
        self.now_ps = max(self.now_ps, deadline_ps)
        self.a.handle_timeout(self.now_ps)
        self.b.handle_timeout(self.now_ps)
        return True

    def run(self, max_steps: int = 100_000) -> None:
        """Until nothing moves and no timer runs, within a bound of steps."""
        for _ in range(max_steps):
            if not self.step() and not self.wait():
                return
        raise AssertionError(f"still moving after {max_steps} steps")

    def settle(self) -> None:
        """Until nothing moves, timers aside."""
        while self.step():
            pass
