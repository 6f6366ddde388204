"""Coverage-guided fuzzing of the two parsers: ``NUMBA_DISABLE_JIT=1 python tests/fuzz/parser.py [CORPUS] [-runs=N]``.

The first byte of an input says the mode, the rest is a frame. The kernels run interpreted, so that their branches are
seen and every index is checked. Options are libFuzzer's; ``--seed-corpus DIRECTORY`` writes the frames of the captures
there and ends; ``--digest DIRECTORY`` prints what each input there reads as, for comparing with compiled kernels.
"""

from __future__ import annotations

import hashlib
import struct
import sys
from contextlib import nullcontext
from pathlib import Path

import atheris
import numpy as np

IS_WATCHED = sys.argv[1:2] != ["--digest"]  # numba cannot compile what is instrumented
with atheris.instrument_imports(include=["ttpoe.wire", "ttpoe.ipv4"]) if IS_WATCHED else nullcontext():
    from ttpoe import ipv4, wire

HEADER, Reason = wire.HEADER, wire.Reason

CAPTURES = Path(__file__).resolve().parent.parent / "data" / "captures"
LIMIT_BYTES = 1024
KERNELS = (
    (wire.parse_header_at, wire.build_header_at, wire.parse),
    (ipv4.parse_ipv4_header_at, ipv4.build_ipv4_header_at, ipv4.parse),
)


def accepts(mode: int, frame: bytes) -> int:
    """Payload bytes of a frame that an endpoint takes, else -1: read anew from the layout, not from our code."""
    if len(frame) < 64:
        return -1
    ethertype, start = struct.unpack_from(">12xHH", frame)
    opcode, channel = frame[42] & 0x3F, frame[43]
    if mode == 0:
        length = struct.unpack_from(">H", frame, 40)[0] - 26
        carried = ethertype == 0x9AC6 and not start & 0x80 and 60 + length <= len(frame)
    else:
        total, fragment, protocol, ports, udp_length = struct.unpack_from(">16xH2xHxB10xIH", frame)
        length = udp_length - 26
        words = sum(struct.unpack_from(">10H", frame, 14))
        carried = (
            (ethertype, start >> 8, protocol, ports) == (0x0800, 0x45, 17, 420 << 16 | 420)
            and 28 <= total <= len(frame) - 14 and not fragment & 0x3FFF and words % 0xFFFF == 0
            and 20 + udp_length <= total
        )  # fmt: skip
    return length if carried and 0 <= length <= LIMIT_BYTES and opcode <= 10 and channel <= 2 else -1


def read(mode: int, frame: bytes) -> tuple[Reason, np.ndarray]:
    """What the kernel says, and the header row; no byte behind the frame may matter."""
    parse, _, _ = KERNELS[mode]
    header = np.zeros(1, HEADER)
    reason = Reason(int(parse(np.frombuffer(frame, np.uint8), len(frame), LIMIT_BYTES, header, 0)))
    longer = np.zeros(1, HEADER)
    slot = np.frombuffer(frame + b"\xa5" * 64, np.uint8)
    if parse(slot, len(frame), LIMIT_BYTES, longer, 0) != reason or longer.tobytes() != header.tobytes():
        raise AssertionError("bytes behind the frame were read")
    return reason, header


def test_one_input(data: bytes) -> None:
    """Parse, compare with an independent reading, and build back."""
    mode, frame = (data[0] & 1 if data else 0), data[1:]
    reason, header = read(mode, frame)
    expected = accepts(mode, frame)
    if (reason is Reason.OK) != (expected >= 0):
        raise AssertionError(f"{reason.name}, but the layout says {expected} bytes of payload")
    if reason is Reason.OK:
        _, build, whole = KERNELS[mode]
        parsed = whole(frame)
        head = np.zeros(60, np.uint8)
        build(header, 0, head)
        if len(parsed.payload) != expected or head.tobytes() + parsed.payload + parsed.trailing != frame:
            raise AssertionError("the frame does not build back")


def digest(directory: Path) -> str:
    """Hash over what every input of a corpus reads as."""
    text = hashlib.sha256()
    for path in sorted(directory.iterdir()):
        data = path.read_bytes()
        reason, header = read(data[0] & 1 if data else 0, data[1:])
        text.update(reason.name.encode() + header.tobytes())
    return text.hexdigest()


def write_seeds(directory: Path) -> None:
    """Each kind of frame of the captures, in both modes."""
    from traces.pcap import open_capture

    directory.mkdir(parents=True, exist_ok=True)
    for path in sorted(CAPTURES.glob("*.pcap")):
        with open_capture(path) as capture:
            for frame in capture:
                for mode in (0, 1):
                    data = bytes([mode]) + bytes(frame.data)
                    reason, header = read(mode, data[1:])
                    name = f"{reason.name}-{mode}-{int(header['opcode'][0])}-{len(data)}"
                    (directory / name).write_bytes(data)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--seed-corpus"]:
        write_seeds(Path(sys.argv[2]))
    elif sys.argv[1:2] == ["--digest"]:
        print(digest(Path(sys.argv[2])))
    else:
        atheris.Setup(sys.argv, test_one_input)
        atheris.Fuzz()
