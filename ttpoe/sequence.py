"""Serial-number arithmetic on 32-bit ids that wrap (RFC 1982): 0xFFFFFFFF is older than 0.

Ids are int64 in [0, 2**32); every result is masked again, so compiled and interpreted code agree.
"""

from __future__ import annotations

from ttpoe._jit import kernel
from ttpoe.constants import SEQ_HALF, SEQ_MASK


@kernel(inline=True)
def seq_add(seq, step):
    """Id ``step`` after ``seq`` (int64, either sign of step)."""
    return (seq + step) & SEQ_MASK


@kernel(inline=True)
def seq_diff(newer, older):
    """Signed distance from ``older`` to ``newer``, in [-2**31, 2**31)."""
    return ((newer - older + SEQ_HALF) & SEQ_MASK) - SEQ_HALF
