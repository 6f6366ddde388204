"""How much payload a link may have in flight: one function a policy.

Only the fixed window of the published hardware so far. Knows nothing of frames, timers or what was lost.
"""

from __future__ import annotations

from ttpoe._jit import kernel


@kernel(inline=True)
def window_room_bytes(link, pool, params):
    """Payload bytes that may be cut into new frames now, by the link's window and by the endpoint's pool.

    The window counts payload held until acknowledged, since that is what occupies the transmit memory.

    Parameters
    ----------
    link : LINK row
    pool : POOL row
    params : PARAMS row

    Returns
    -------
    int64
        Bytes, never below zero for a window that did not shrink.

    Notes
    -----
    Source: published context, "transmit window fixed by 1 MB of SRAM"; whether links share it is a parameter here.
    """
    own = params["window_bytes"] - (link["cut_bytes"] - link["acked_bytes"])
    shared = pool["limit_bytes"] - pool["held_bytes"]
    return own if own < shared else shared
