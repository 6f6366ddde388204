"""The tag table: which row of the LINK array serves a peer. Sets of a few ways, one table for each virtual channel.

The specification names 256 sets of two ways. A peer can lie in one set only, so finding it compares as many addresses
as there are ways, however many links there are; and a peer whose set is full needs a victim, or is refused. Knows
nothing of states and frames.
"""

from __future__ import annotations

from ttpoe._jit import kernel

_NODE_MASK = 0xFFFFFF


@kernel(inline=True)
def tag_set(address, set_bits):
    """Set of a peer: its node id folded by XOR to ``set_bits`` bits.

    The node id is the low three bytes of the MAC address, or of the IPv4 address in IPv4 mode. Ids that differ only in
    ``set_bits`` neighbouring bits have a set each: neighbours by number do, and so do ports at a stride of 4 or 256.

    Notes
    -----
    Ours: the specification gives the table's shape and no function.
    """
    node = address & _NODE_MASK
    folded = 0
    while node != 0 and set_bits > 0:
        folded ^= node
        node >>= set_bits
    return folded & ((1 << set_bits) - 1)


@kernel(export=True)
def tag_set_at(address, set_bits):
    """:func:`tag_set`, for Python."""
    return tag_set(address, set_bits)


@kernel
def find_row(tags, keys, set_bits, address, vc):
    """Row of the link to a peer, or 0.

    Parameters
    ----------
    tags : int64 array, shape (channels, sets, ways)
        Rows; 0 is a free way.
    keys : int64 array, one per row
        Addresses, whole.
    set_bits, address, vc : int64
    """
    at = tag_set(address, set_bits)
    for way in range(tags.shape[2]):
        row = tags[vc, at, way]
        if row != 0 and keys[row] == address:
            return row
    return 0


@kernel
def _replace(tags, set_bits, address, vc, old, new):
    """Put ``new`` where ``old`` is in the set of ``address``; False if it is not there. Modifies ``tags``."""
    at = tag_set(address, set_bits)
    for way in range(tags.shape[2]):
        if tags[vc, at, way] == old:
            tags[vc, at, way] = new
            return True
    return False


@kernel(export=True)
def put_row(tags, set_bits, address, vc, row):
    """Give a peer a way of its set; False if none is free. Modifies ``tags``."""
    return _replace(tags, set_bits, address, vc, 0, row)


@kernel(export=True)
def remove_row(tags, set_bits, address, vc, row):
    """Free the way of a peer. Modifies ``tags``."""
    return _replace(tags, set_bits, address, vc, row, 0)
