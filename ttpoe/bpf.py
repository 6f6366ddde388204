"""Classic BPF programs for sockets: which frames the kernel hands to us.

A program is a list of conditions that must all hold. Knows nothing of what the frames are for.
"""

from __future__ import annotations

import ctypes
import socket
import struct
from typing import NamedTuple

_SO_ATTACH_FILTER = 26  # asm-generic/socket.h
_LOAD_HALF, _LOAD_BYTE, _LOAD_WORD = 0x28, 0x30, 0x20  # linux/bpf_common.h
_LOAD_HALF_INDEXED, _INDEX_IPV4_HEADER = 0x48, 0xB1
_JUMP_EQUAL, _JUMP_ANY_BIT, _RETURN = 0x15, 0x45, 0x06
_AD_OFFSET = 0xFFFFF000  # SKF_AD_OFF: loads from here on read what the kernel knows beside the frame
_AD_PACKET_TYPE, _AD_VLAN_PRESENT = _AD_OFFSET + 4, _AD_OFFSET + 48
_PACKET_OUTGOING = 4
_WHOLE_FRAME = 0x40000


class Condition(NamedTuple):
    """Instructions that load a value, how to test it, and which outcome lets the frame pass."""

    loads: tuple[tuple[int, int], ...]
    jump: int
    operand: int
    passes_if: bool


def half_is(offset: int, value: int) -> Condition:
    """Two bytes of the frame."""
    return Condition(((_LOAD_HALF, offset),), _JUMP_EQUAL, value, True)


def byte_is(offset: int, value: int) -> Condition:
    """One byte of the frame."""
    return Condition(((_LOAD_BYTE, offset),), _JUMP_EQUAL, value, True)


def word_is(offset: int, value: int) -> Condition:
    """Four bytes of the frame."""
    return Condition(((_LOAD_WORD, offset),), _JUMP_EQUAL, value, True)


def half_has_none_of(offset: int, bits: int) -> Condition:
    """Two bytes of the frame, some bits of which must be zero."""
    return Condition(((_LOAD_HALF, offset),), _JUMP_ANY_BIT, bits, False)


def half_behind_ipv4_is(offset: int, value: int) -> Condition:
    """Two bytes at ``offset`` behind the IPv4 header of an untagged frame, whatever options that has."""
    return Condition(((_INDEX_IPV4_HEADER, 14), (_LOAD_HALF_INDEXED, 14 + offset)), _JUMP_EQUAL, value, True)


def outgoing(*, is_outgoing: bool) -> Condition:
    """Sent by this host, or not."""
    return Condition(((_LOAD_HALF, _AD_PACKET_TYPE),), _JUMP_EQUAL, _PACKET_OUTGOING, is_outgoing)


def vlan_tagged(*, is_tagged: bool) -> Condition:
    """A tag that the kernel has taken off."""
    return Condition(((_LOAD_HALF, _AD_VLAN_PRESENT),), _JUMP_EQUAL, 0, not is_tagged)


def assemble(*conditions: Condition) -> bytes:
    """The program that passes a frame if all conditions hold; without any, nothing passes."""
    left = sum(len(condition.loads) + 1 for condition in conditions)
    code = []
    for loads, jump, operand, passes_if in conditions:
        code += [(load, 0, 0, operand_of_load) for load, operand_of_load in loads]
        left -= len(loads) + 1
        to_drop = left + 1  # over what follows and the return that passes
        code.append((jump, 0, to_drop, operand) if passes_if else (jump, to_drop, 0, operand))
    if conditions:
        code.append((_RETURN, 0, 0, _WHOLE_FRAME))
    code.append((_RETURN, 0, 0, 0))
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)


def attach(sock: socket.socket, program: bytes) -> None:
    """Have the kernel ask ``program`` about each frame for ``sock``; a second call replaces the first."""
    memory = ctypes.create_string_buffer(program, len(program))
    sock.setsockopt(
        socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("HP", len(program) // 8, ctypes.addressof(memory))
    )
